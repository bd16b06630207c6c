"""What a job says and logs while a real worker runs it."""

from jobqueue.models import JobAttempt
from tests.app import tasks
from tests.factories import job, state
from tests.marks import committed
from tests.patience import wait_until

pytestmark = committed


def test_progress_is_seen_at_once_and_the_log_of_a_failed_attempt_is_kept(worker, tmp_path):
    found = tasks.reports_and_waits.enqueue(str(tmp_path / "gate"))
    untidy = tasks.counts.enqueue(3, "leaves a transaction open")
    worker()
    wait_until(lambda: state(untidy.id) == "DONE")
    assert job(untidy.id).progress["done"] == 4
    wait_until(lambda: job(found.id).progress == {"done": 1, "total": 2, "note": "waiting"})
    assert state(found.id) == "PROCESSING"
    (tmp_path / "gate").touch()
    wait_until(lambda: state(found.id) == "FAILED")
    assert job(found.id).progress == {"done": 2, "total": 2, "note": ""}
    assert JobAttempt.objects.get().log.endswith("WARNING tests.app: about to wait")
