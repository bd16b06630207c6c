"""What a job waits for after the death of its worker, with the back-off that a project has by default: nothing.

How many seconds that takes is measured by tests/proofs/operations/test_recovery.py.
"""

import os
import signal

from jobqueue.models import Worker
from tests.app import tasks
from tests.factories import expire, job, now, state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.probe import starts

pytestmark = committed
DEFAULT_BACKOFF = {"JOBQUEUE_TEST_DEFAULT_BACKOFF": "1"}
#: nobody here waits for its end
LONG = ("--lease", "2h")


@finding("item-2")
def test_after_a_death_that_the_supervisor_saw_the_job_waits_for_no_back_off_and_no_lease(start, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    group = start("runworker", *LONG, **DEFAULT_BACKOFF)
    (first,) = starts(evidence)
    due_at, lease_until = job(job_id).run_at, job(job_id).lock_until
    os.kill(int(first[1]), signal.SIGKILL)
    second = starts(evidence, 2)[1]
    assert now() < lease_until
    assert second[3:] == ["2", "2"]
    assert job(job_id).run_at == due_at, "there was a back-off"
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE")
    assert (job(job_id).attempts, job(job_id).crashes) == (1, 1)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_after_the_loss_of_a_whole_worker_the_job_starts_again_when_its_lease_has_run_out(start, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    lost = start("runworker", *LONG, **DEFAULT_BACKOFF)
    starts(evidence)
    other = start("runworker", *LONG, **DEFAULT_BACKOFF)
    wait_until(lambda: Worker.objects.filter(stopped_at=None).count() == 2, what="the other worker")
    lost.signal_all(signal.SIGKILL)
    lost.end()
    due_at = job(job_id).run_at
    assert len(starts(evidence)) == 1, "it did not wait for the end of the lease"
    # As if the rest of it had passed.
    expire(int(job_id))
    assert starts(evidence, 2)[1][3:] == ["2", "2"]
    assert job(job_id).run_at == due_at, "there was a back-off"
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE")
    other.signal(signal.SIGTERM)
    assert other.wait() == 0
