"""A monitor whose connection hangs is replaced, and children do not rely on one that does nothing."""

import os
import signal
import time
from datetime import timedelta

import pytest

from jobqueue.models import Worker
from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.shared.scoreboard import Scoreboard, State
from tests.app import tasks
from tests.factories import job, now, state
from tests.marks import committed, finding
from tests.patience import patient, wait_until
from tests.process.probe import free_port, monitor_of, starts, turns_of
from tests.proofs.test_probes import get
from tests.settings import VENDOR

pytestmark = committed
#: how the monitor renews
RENEWAL = rb"(?s)lock_until. = .{0,80}GREATEST"


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no connection that could hang")
@finding("A5")
def test_a_monitor_whose_connection_hangs_is_replaced_before_the_leases_of_its_children_end(
    start, proxied, evidence, gate
):
    proxy, through = proxied
    job_id = tasks.gated.enqueue(str(gate)).id
    # The monitor is given up after half of a lease; the other half is for the next one to renew it.
    lease_seconds = round(patient(2))
    group = start("runworker", "--lease", f"{lease_seconds}s", "--heartbeat", "0.5s", **through)
    starts(evidence)
    proxy.arm(RENEWAL)
    group.causes(proxy.holed, "no renewal")
    last = job(job_id).lock_until
    group.prints("replacing it")
    # No lease that has run out is renewed.
    wait_until(lambda: (job(job_id).lock_until or last) > last + timedelta(seconds=2), what="renewals")
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE", what="the end of the job")
    assert (job(job_id).fence, job(job_id).attempts, len(evidence.read("start"))) == (1, 0, 1)


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no connection that could hang")
def test_a_monitor_that_is_killed_before_it_was_ready_is_replaced(start, proxied):
    proxy, through = proxied
    proxy.deaf.set()
    group = start("runworker", **through)
    group.causes(proxy.holed, "no connection")
    os.kill(monitor_of(group), signal.SIGKILL)
    proxy.deaf.clear()
    group.prints("the monitor process was ended by signal 9 before it was ready; starting another")
    job_id = tasks.add.enqueue(1, 2).id
    wait_until(lambda: state(job_id) == "DONE", what="the end of a job")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


@finding("A5")
def test_a_child_whose_leases_nobody_renews_claims_nothing_and_tells_its_jobs_to_stop(start, evidence):
    running = tasks.patient.enqueue(600).id
    lease_seconds = patient(0.8)
    group = start("runworker", "--lease", f"{lease_seconds}s", "--heartbeat", "1s")
    starts(evidence)
    child = Worker.objects.get().pid
    others = [pid for pid in group.members() if pid != child]
    # Supervisor and monitor hang, and whatever else there is.
    group.freeze(*others)
    frozen_at = now()
    wait_until(lambda: evidence.read("effect"), what="a job that has seen that it should stop")
    assert evidence.read("effect")[0][5] == "1"
    # Even if it saw it before all was frozen, because the monitor of a busy machine was late:
    over = frozen_at + timedelta(seconds=lease_seconds)
    wait_until(lambda: now() > over, what="the end of the time in which jobs are claimed")
    waiting = tasks.add.enqueue(1, 1).id
    turns = turns_of(child)
    wait_until(lambda: turns_of(child) >= turns + 20, what="turns of its loop that pass the job by")
    assert state(waiting) == "READY"
    group.thaw(*others)
    wait_until(lambda: state(waiting) == "DONE", what="the job that waited")
    group.signal(signal.SIGTERM)
    wait_until(lambda: state(running) == "DONE", what="the end of the first job")


@finding("A5")
def test_a_worker_whose_monitor_is_silent_is_not_ready():
    scoreboard = Scoreboard(1, 1)
    scoreboard.slots[0].state = State.RUNNING
    Probe(scoreboard, port := free_port())
    scoreboard.header.monitor_ticked_at = time.monotonic()
    assert get(port, "/ready") == (200, "ready: 1 child\n")
    scoreboard.header.monitor_ticked_at = time.monotonic() - 60
    status, words = get(port, "/ready")
    assert (status, "silent for 60 s" in words) == (503, True)
