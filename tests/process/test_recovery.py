"""How soon a job starts again after the death of its worker, with the back-off that a project has by default."""

import os
import signal
import time

from django.db import connection

from tests.app import tasks
from tests.factories import job, seconds_from_now, state, wait_until
from tests.marks import committed, finding
from tests.patience import patient
from tests.process.probe import starts

pytestmark = committed
DEFAULT_BACKOFF = {"JOBQUEUE_TEST_DEFAULT_BACKOFF": "1"}
#: what the README promises, on a machine that has time for it; see `late`
SEEN_SECONDS = UNSEEN_SECONDS = 2.0


def late(seconds):
    """`seconds` for a machine whose processors are idle, more for one that is as busy as ours now; below a back-off."""
    return min(3.5, patient(seconds) / 5)


def starts_again_within(evidence, killed_at, seconds):
    """The second start, and how long after the death it came."""
    second = starts(evidence, 2)[1]
    waited = time.monotonic() - killed_at
    assert waited <= seconds, f"the job started again after {waited:.2f} s"
    return second


@finding("item-2")
def test_after_a_death_that_the_supervisor_saw_the_job_starts_again_within_two_seconds(start, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    group = start("runworker", **DEFAULT_BACKOFF)
    (first,) = starts(evidence)
    killed_at = time.monotonic()
    os.kill(int(first[1]), signal.SIGKILL)
    second = starts_again_within(evidence, killed_at, late(SEEN_SECONDS))
    assert second[3:] == ["2", "2"]
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE")
    assert (job(job_id).attempts, job(job_id).crashes) == (1, 1)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_after_the_loss_of_a_whole_worker_the_job_starts_again_within_its_lease_and_two_seconds(start, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    lost = start("runworker", "--lease", "6s", **DEFAULT_BACKOFF)
    starts(evidence)
    other = start("runworker", **DEFAULT_BACKOFF)
    wait_until(lambda: "worker" in other.text() and len(workers()) == 2, what="the other worker")
    lost.signal_all(signal.SIGKILL)
    killed_at = time.monotonic()
    left = seconds_from_now(job(job_id).lock_until)
    assert left <= 6
    second = starts_again_within(evidence, killed_at, 6 + late(UNSEEN_SECONDS))
    assert second[3:] == ["2", "2"]
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE")
    other.signal(signal.SIGTERM)
    assert other.wait() == 0


def workers():
    """The names of the workers that are registered."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM job_worker WHERE stopped_at IS NULL")
        return cursor.fetchall()
