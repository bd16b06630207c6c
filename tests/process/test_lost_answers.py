"""Answers that never arrived, and a monitor that dies: nothing stays held for ever."""

import os
import signal

from django.db import transaction

from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job, Worker
from jobqueue.transitions import reap, release_held
from tests.app import tasks
from tests.factories import expire, job, make_job, row, set_columns, state
from tests.marks import committed
from tests.patience import wait_until
from tests.process.probe import monitor_of

pytestmark = committed


def only_child():
    """The worker row of the one child, once it is there."""
    return wait_until(lambda: Worker.objects.filter(stopped_at__isnull=True).first(), what="a registered child")


def test_a_claim_whose_answer_was_lost_is_recovered_while_its_worker_lives(worker):
    """The commit of a claim reached the server and its answer did not reach the worker (faults.md F15)."""
    group = worker()
    child = only_child()
    # At once, or the worker takes the job as it is first.
    with transaction.atomic():
        job_id = make_job(
            "elsewhere",
            task="tests.app.tasks.add",
            payload={"args": [1, 2], "kwargs": {}},
            status=Job.Status.PROCESSING,
            locked_by=child.name,
            lock_token=b"lost on the wire",
            lock_until=UtcNowPlus(1),
            locked_at=UtcNowPlus(0),
            fence=1,
        )
    wait_until(lambda: state(job_id) == "DONE", what="the recovery of a lease that nobody works on")
    assert group.members()


def test_a_killed_monitor_is_replaced_and_leases_go_on(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    job_id = tasks.gated.enqueue(str(gate)).id
    group = worker()
    child = int(wait_until(lambda: evidence.read("start"))[0][1])
    monitor = monitor_of(group, child)
    os.kill(monitor, signal.SIGKILL)
    wait_until(lambda: len(group.members()) == 4 and monitor not in group.members(), what="another monitor")
    first = row(job_id)["lock_until"]
    wait_until(lambda: row(job_id)["lock_until"] != first, what="a renewal by the new monitor")
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE")
    assert (job(job_id).attempts, job(job_id).fence) == (0, 1)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_lease_lost_under_a_running_job_is_told_to_it(worker, evidence):
    job_id = tasks.patient.enqueue(600).id
    worker("--no-reaper")
    wait_until(lambda: evidence.read("start"))
    set_columns(job_id, gate=1)
    expire(int(job_id))
    if not reap().total:  # the monitor was faster: the lease lives, so take it away as an operator does
        assert release_held(job_id)
    wait_until(lambda: evidence.read("effect"), what="the word to the body")
    assert evidence.read("effect")[0][5] == "1"
    assert state(job_id) == "READY"


def test_a_worker_that_fell_silent_is_marked_by_another_ones_heartbeats(worker):
    where = {
        "host": "h",
        "pid": 1,
        "supervisor_pid": 1,
        "boot_id": "b",
        "queues": "*",
        "concurrency": 1,
        "version": "1",
    }
    silent = Worker.objects.create(name="gone", **where, heartbeat_at=UtcNowPlus(-3600))
    worker()
    wait_until(lambda: Worker.objects.get(pk=silent.pk).stopped_at, what="the mark")
    assert Worker.objects.get(pk=silent.pk).stop_reason == "silent: no heartbeat"
