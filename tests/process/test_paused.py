"""A worker that stood still for longer than its leases starts nothing that it had claimed ahead."""

import signal

from jobqueue.models import Job
from tests.app import tasks
from tests.factories import enqueue_times, state
from tests.marks import committed
from tests.patience import patient, wait_until

pytestmark = committed


def claimed_ahead(evidence):
    """The jobs that the worker has claimed and not started; none while its thread is between two jobs.

    There it may have passed the check already for a job whose start is not written yet.
    """
    started = {line[2] for line in evidence.read("start")}
    if started == {line[2] for line in evidence.read("effect")}:
        return set()
    return {str(pk) for pk in Job.objects.leased().values_list("pk", flat=True)} - started


def frozen_with_more_in_hand(group, evidence):
    """Freeze the worker; return the jobs it has claimed and not begun, or thaw it if there are none."""
    group.freeze()
    if not (waiting := claimed_ahead(evidence)):
        group.thaw()
    return waiting


def test_what_was_claimed_ahead_of_a_long_pause_is_run_by_the_other_worker_alone(worker, evidence):
    enqueue_times(80, tasks.sleep, 0.05)
    # It gives back by itself what waits for long; here it is the thread that must notice.
    paused = worker("--concurrency", 1, "--lease", f"{patient(1)}s", JOBQUEUE_TEST_STALLED_SECONDS="600")
    wait_until(lambda: len(evidence.read("effect")) >= 5, what="runs, by which it knows how far to claim ahead")
    waiting = wait_until(lambda: frozen_with_more_in_hand(paused, evidence), what="jobs that it has in hand")
    other = worker("--concurrency", 4)
    wait_until(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists(), what="the end of all jobs")
    other.signal(signal.SIGTERM)
    assert other.wait() == 0
    paused.thaw()
    # Behind all that it still has in hand.
    last = tasks.add.enqueue(1, 1).id
    wait_until(lambda: state(last) == "DONE", what="the last job")
    starts = [line[2] for line in evidence.read("start")]
    assert {job_id: starts.count(job_id) for job_id in waiting} == dict.fromkeys(waiting, 1)
    paused.signal(signal.SIGTERM)
    assert paused.wait() == 0
