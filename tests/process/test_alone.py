"""Jobs that a worker runs alone: each has a process of its own, which may die, be killed or be interrupted."""

import os
import signal

from django.db import transaction

from jobqueue.db.clock import UtcNow
from jobqueue.dead_letters import redrives
from jobqueue.runs.alone import request_alone
from tests.app import tasks
from tests.factories import expire, job, set_columns, state
from tests.marks import committed
from tests.patience import wait_until
from tests.process.probe import renewed, starts

pytestmark = committed


def quarantined(task, *args):
    # In one transaction: a worker that runs would claim the job first.
    with transaction.atomic():
        job_id = int(task.using(queue_name="bad", max_attempts=1).enqueue(*args).id)
        ended = {"status": 3, "attempts": 1, "crashes": 1, "cause": "lost", "finished_at": UtcNow()}
        set_columns(job_id, wait_reason="quarantined", **ended)
    return job_id


def ended():
    """The newest request, once it has ended."""
    return wait_until(lambda: (run := redrives()[0]).ended_at and run, what="the end of the request")


def test_a_job_that_dies_alone_takes_no_other_job_with_it(worker, evidence, gate):
    beside = tasks.gated.enqueue(str(gate)).id
    group = worker("--processes", "1")
    starts(evidence)
    job_id = quarantined(tasks.die)
    assert request_alone(job_id)
    assert ended().reason == f"job {job_id} is FAILED after it ran alone; cause: lost, quarantined"
    assert (job(job_id).attempts, job(beside).attempts, state(beside)) == (2, 0, "PROCESSING")
    assert "exited with status 9" in job(job_id).last_error
    first, second = starts(evidence, 2)
    assert first[1] != second[1]
    # The next one, which succeeds: the slot is used again.
    other = quarantined(tasks.add, 1, 2)
    assert request_alone(other)
    assert (ended().state, state(other), job(other).result) == ("done", "DONE", 3)
    late = quarantined(tasks.stuck)
    assert request_alone(late)
    assert ended().reason == f"job {late} is FAILED after it ran alone; cause: timeout"
    gate.touch()
    wait_until(lambda: state(beside) == "DONE")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_it_survives_the_stop_of_its_worker_and_the_death_of_the_next(worker, evidence, gate):
    job_id = quarantined(tasks.gated, str(gate))
    assert request_alone(job_id)
    group = worker("--shutdown-timeout", "1s")
    starts(evidence)
    # Leases are renewed as those of other jobs are.
    renewed(job_id)
    group.signal(signal.SIGTERM)
    group.wait()
    assert (state(job_id), job(job_id).gate, job(job_id).attempts) == ("READY", 2, 1)
    group = worker()
    starts(evidence, 2)
    group.signal_all(signal.SIGKILL)
    group.wait()
    worker()
    expire(job_id)
    assert "quarantined" in ended().reason
    assert request_alone(job_id)
    third = starts(evidence, 3)[2]
    os.kill(int(third[1]), signal.SIGKILL)
    assert "quarantined" in ended().reason
    assert "was killed by SIGKILL" in job(job_id).last_error
    assert request_alone(job_id)
    starts(evidence, 4)
    gate.touch()
    assert ended().state == "done"
    assert (state(job_id), job(job_id).attempts) == ("DONE", 3)
