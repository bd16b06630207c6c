"""Jobs that run for too long: told to end, or ended together with their process; nobody else pays."""

from __future__ import annotations

import pytest

from jobqueue.models import Job, JobAttempt
from tests.app import coroutines, tasks
from tests.factories import state
from tests.marks import committed
from tests.proofs.running import wait_for

pytestmark = committed

# A lease that does not run out on a busy machine, and limits that do not come before the job's first line there.
OPTIONS = ("--lease", "60s", "--heartbeat", "2s", "--concurrency", "4")
SECONDS = 3


@pytest.mark.parametrize("task", [tasks.overlong, coroutines.overlong], ids=["thread", "coroutine"])
def test_a_job_beyond_its_soft_timeout_gets_an_exception_and_can_clean_up(run_worker, task):
    """Soft timeout: an exception in the job, which can clean up."""
    job_id = int(task.using(timeout_seconds=SECONDS).enqueue().id)
    after = int(tasks.add.enqueue(1, 1).id)
    worker = run_worker(*OPTIONS)
    wait_for(lambda: state(job_id) == "FAILED" and state(after) == "DONE", 30, "the end of both jobs")
    assert len(worker.lines("cleanup")) == 1
    assert Job.objects.get(pk=job_id).cause == "timeout"
    assert len(worker.children()) == 3, "the same child, monitor and log writer"
    assert worker.stop() == 0
    assert "ended unexpectedly" not in worker.output()


@pytest.mark.parametrize(("task", "starts"), [(tasks.stuck, 2), (tasks.hog, 1)], ids=["blocked-in-C", "holds-the-GIL"])
def test_a_job_beyond_its_hard_timeout_is_ended_with_its_process_and_only_it_is_charged(
    run_worker, task, starts, tmp_path, figure
):
    """Hard timeout: the child is killed and replaced, only that job is charged, its neighbours keep their leases."""
    gate = tmp_path / "gate"
    neighbour = int(tasks.gated.enqueue(str(gate)).id)
    job_id = int(task.using(hard_timeout_seconds=SECONDS).enqueue().id)
    worker = run_worker(*OPTIONS)
    wait_for(lambda: state(job_id) == "FAILED", 60, "the end of the stuck job")
    gate.touch()
    wait_for(lambda: state(neighbour) == "DONE", 60, "the end of its neighbour")
    dead = Job.objects.get(pk=job_id)
    assert (dead.attempts, dead.cause) == (starts, "timeout")
    started = len([line for line in worker.lines("start") if line[2] == str(job_id)])
    charged = Job.objects.get(pk=neighbour).attempts
    assert (started, charged) == (starts, 0)
    assert not JobAttempt.objects.filter(job_id=neighbour).exists()
    assert worker.stop() == 0
    figure("job", task.func.__name__)
    figure("max_attempts", dead.max_attempts)
    figure("starts", started)
    figure("attempts charged to its neighbour", charged)


def test_a_job_that_ends_in_time_is_left_alone(run_worker):
    """A timeout that is not reached costs nothing."""
    quick = [int(tasks.add.using(timeout_seconds=60, hard_timeout_seconds=120).enqueue(n, 1).id) for n in range(50)]
    worker = run_worker(*OPTIONS)
    wait_for(lambda: Job.objects.filter(pk__in=quick, status=Job.Status.DONE).count() == 50, 30, "all jobs")
    assert worker.stop() == 0
