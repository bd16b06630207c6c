"""A running job that does not stop when it is canceled: its process is killed, and the jobs beside it run again."""

import os
import signal

import pytest

from jobqueue.models import Job, JobAttempt, Worker
from jobqueue.transitions import cancel
from tests.app import coroutines, tasks
from tests.factories import expire, job, state
from tests.marks import committed
from tests.patience import wait_until
from tests.process.harness import LONG
from tests.process.probe import monitor_of, starts

pytestmark = committed


def pid_of(evidence, job_id):
    """The process in which a job was started last."""
    return [int(line[1]) for line in evidence.read("start") if line[2] == str(job_id)][-1]


def kept(job_id):
    """The only attempt that is kept of a job."""
    return JobAttempt.objects.get(job_id=job_id)


def ended(job_id):
    wait_until(lambda: state(job_id) == "CANCELED", what="the end of the canceled job")
    found = job(job_id)
    assert (found.attempts, found.crashes, found.last_error, found.locked_by) == (0, 0, None, None)


@pytest.mark.parametrize("where", ["loop", "wait", "coroutine"])
def test_a_job_that_ignores_the_request_is_ended_with_its_stack_and_the_others_run_again(worker, evidence, gate, where):
    job_id = int(
        {
            "loop": lambda: tasks.spins.enqueue(),
            "wait": lambda: tasks.sleep.enqueue(600),
            "coroutine": lambda: coroutines.gated.enqueue(str(gate) + "-never"),
        }[where]().id
    )
    beside = [int(task.enqueue(str(gate)).id) for task in (tasks.gated, coroutines.gated)]
    group = worker("--processes", 1, "--concurrency", 4)
    starts(evidence, 3)
    assert {pid_of(evidence, one) for one in (job_id, *beside)} == {pid_of(evidence, job_id)}
    assert cancel(job_id, kill_after_seconds=1)
    ended(job_id)
    attempt = kept(job_id)
    name = {"loop": " spins", "wait": " sleep", "coroutine": "asyncio/tasks.py"}[where]
    assert (attempt.attempt, attempt.cause, attempt.error_class) == (1, "canceled", "jobqueue.exceptions.JobCanceled")
    assert name in attempt.error
    starts(evidence, 5)
    gate.touch()
    wait_until(lambda: {state(one) for one in beside} == {"DONE"}, what="the end of the jobs beside it")
    assert Job.objects.filter(pk__in=beside, attempts=0, crashes=0).count() == 2
    assert JobAttempt.objects.count() == 1
    told = Worker.objects.filter(stop_reason__contains=f"killed because job {job_id} was canceled")
    wait_until(told.exists, what="the reason in the row of the process")
    assert "ended unexpectedly" not in group.text()
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_job_that_holds_the_interpreter_is_ended_without_its_stack(worker, evidence, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    job_id = int(tasks.hold_the_gil.enqueue(str(fifo)).id)
    worker("--processes", 1)
    starts(evidence)
    assert cancel(job_id, kill_after_seconds=0)
    ended(job_id)
    assert "it executed no Python code" in kept(job_id).error


def test_a_job_that_stops_in_time_takes_no_other_with_it(worker, evidence, gate):
    job_id, beside = int(tasks.patient.enqueue(600).id), int(tasks.gated.enqueue(str(gate)).id)
    group = worker("--processes", 1, "--concurrency", 2)
    starts(evidence, 2)
    assert cancel(job_id, kill_after_seconds=5)
    wait_until(lambda: state(job_id) == "DONE", what="its end")
    # Another job is started in the same process: it does not wait for an end.
    other = int(tasks.gated.enqueue(str(gate)).id)
    starts(evidence, 3)
    assert pid_of(evidence, other) == pid_of(evidence, beside)
    gate.touch()
    wait_until(lambda: state(other) == state(beside) == "DONE", what="the others")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert len(evidence.read("start")) == 3
    assert not JobAttempt.objects.exists()


def test_the_second_call_shortens_the_time_and_none_lengthens_it(worker, evidence):
    job_id = int(tasks.sleep.enqueue(600).id)
    worker("--processes", 1)
    starts(evidence)
    assert cancel(job_id)
    assert cancel(job_id, kill_after_seconds=3600)
    assert cancel(job_id, kill_after_seconds=0)
    assert cancel(job_id, kill_after_seconds=3600)
    assert cancel(job_id)
    ended(job_id)


def test_the_monitor_ends_it_after_the_supervisor_was_killed(worker, evidence, gate):
    job_id, beside = int(tasks.sleep.enqueue(600).id), int(tasks.gated.enqueue(str(gate)).id)
    group = worker("--processes", 1, "--concurrency", 2)
    starts(evidence, 2)
    assert cancel(job_id, kill_after_seconds=2)
    group.signal(signal.SIGKILL)
    ended(job_id)
    wait_until(lambda: state(beside) == "READY", what="the job beside it")
    assert job(beside).attempts == 0


def test_the_next_monitor_ends_it(worker, evidence):
    job_id = int(tasks.sleep.enqueue(600).id)
    group = worker("--processes", 1)
    starts(evidence)
    child = pid_of(evidence, job_id)
    assert cancel(job_id, kill_after_seconds=3)
    os.kill(monitor_of(group, child), signal.SIGKILL)
    ended(job_id)
    assert child not in group.members()


def test_a_job_whose_whole_worker_has_died_is_ended_by_the_reaper(worker, start, evidence):
    job_id = int(tasks.sleep.enqueue(600).id)
    group = start("runworker", *LONG)
    starts(evidence)
    group.signal_all(signal.SIGKILL)
    group.wait()
    assert cancel(job_id, kill_after_seconds=0)
    expire(job_id)
    worker()
    wait_until(lambda: state(job_id) == "CANCELED", what="the reaper")


def test_a_job_that_runs_alone_is_ended_too(worker, start, evidence):
    job_id = int(tasks.sleep.enqueue(600).id)
    assert cancel(job_id)
    group = start("jobs", "retry", "--alone", job_id)
    starts(evidence)
    assert cancel(job_id, kill_after_seconds=0)
    assert group.wait() == 0
    ended(job_id)
    assert " sleep" in kept(job_id).error
