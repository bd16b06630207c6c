"""A keeper whose connection hangs is replaced, and children do not rely on one that does nothing."""

import time

import pytest

from jobqueue.models import Worker
from jobqueue.worker.board import Board, State
from jobqueue.worker.probe import Probe
from tests.app import tasks
from tests.factories import job, seconds_from_now, state, wait_until
from tests.marks import committed, finding
from tests.patience import patient
from tests.process.probe import free_port, starts
from tests.proofs.test_probes import get
from tests.settings import VENDOR

pytestmark = committed
#: how the keeper begins to renew
RENEWAL = rb"SELECT .*lock_until.* WHERE .*.id. IN "


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no connection that could hang")
@finding("A5")
def test_a_keeper_whose_connection_hangs_is_replaced_before_the_leases_of_its_children_end(
    start, proxied, evidence, gate
):
    proxy, through = proxied
    lease_seconds = 12
    job_id = tasks.gated.enqueue(str(gate)).id
    group = start("runworker", "--lease", f"{lease_seconds}s", "--heartbeat", "0.5s", **through)
    starts(evidence)
    proxy.arm(RENEWAL)
    assert proxy.holed.wait(patient(5)), "no renewal"
    until = time.monotonic() + lease_seconds + 2
    while time.monotonic() < until:
        assert seconds_from_now(job(job_id).lock_until) > 0, "the lease has run out"
        time.sleep(0.1)
    wait_until(lambda: "replacing it" in group.text(), what="the new keeper")
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE", what="the end of the job")
    assert (job(job_id).fence, job(job_id).attempts, len(evidence.read("start"))) == (1, 0, 1)


@finding("A5")
def test_a_child_whose_leases_nobody_renews_claims_nothing_and_tells_its_jobs_to_stop(start, evidence):
    running = tasks.patient.enqueue(600).id
    group = start("runworker", "--lease", "4s", "--heartbeat", "1s")
    starts(evidence)
    child = Worker.objects.get().pid
    # Supervisor and keeper hang, and whatever else there is.
    group.freeze(*(pid for pid in group.members() if pid != child))
    wait_until(lambda: evidence.read("effect"), 10, "a job that has seen that it should stop")
    assert evidence.read("effect")[0][5] == "1"
    # Its lease was over by then: so was the time in which jobs were claimed.
    waiting = tasks.add.enqueue(1, 1).id
    time.sleep(1)
    assert state(waiting) == "READY"
    group.thaw(*(pid for pid in group.members() if pid != child))
    wait_until(lambda: state(waiting) == "DONE", what="the job that waited")
    wait_until(lambda: state(running) == "DONE", what="the end of the first job")


@finding("A5")
def test_a_worker_whose_keeper_is_silent_is_not_ready():
    board = Board(1, 1)
    board.regions[0].state = State.RUNNING
    Probe(board, port := free_port())
    board.header.keeper_ticked_at = time.monotonic()
    assert get(port, "/ready") == (200, "ready: 1 children\n")
    board.header.keeper_ticked_at = time.monotonic() - 60
    status, words = get(port, "/ready")
    assert (status, "silent for 60 s" in words) == (503, True)
