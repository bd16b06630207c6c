"""What the monitor does with a duty that fails, and with what waits in a child."""

import logging
import time

import pytest

from jobqueue.transitions import cancel, claim, reap
from jobqueue.worker.monitor.monitor import Monitor
from jobqueue.worker.monitor.stopping import flag
from jobqueue.worker.shared.queue_choice import Selection
from jobqueue.worker.shared.scoreboard import CANCEL, LOST, Hold, Scoreboard
from jobqueue.worker.shared.worker_options import Options
from tests.factories import expire, make_jobs


def test_a_duty_that_fails_unexpectedly_keeps_no_other_from_being_done(caplog):
    monitor, done = Monitor(Options(Selection(), "default"), Scoreboard(1, 1)), []

    def broken():
        raise ValueError("no row like this was foreseen")

    with caplog.at_level(logging.ERROR, "jobqueue.worker"):
        monitor._duty(broken)
    monitor._duty(lambda: done.append(1))
    assert done == [1]
    assert "no row like this was foreseen" in caplog.text


@pytest.mark.django_db
@pytest.mark.parametrize("hold", [Hold.WAITING, Hold.RUNNING])
def test_what_waits_learns_of_its_end_as_what_runs_does(hold):
    make_jobs(3)
    leases = claim("q", 3, worker="w")
    scoreboard = Scoreboard(1, 3)
    for lease, lease_slot in zip(leases, scoreboard.lease_slots[0], strict=True):
        lease_slot.job_id, lease_slot.fence, lease_slot.hold = lease.job_id, lease.fence, hold
    assert cancel(leases[1].job_id)
    expire(leases[2])
    reap()
    flag(scoreboard.in_hand(0), "default")
    assert [lease_slot.flags for lease_slot in scoreboard.lease_slots[0]] == [0, CANCEL, LOST]


@pytest.mark.django_db
def test_a_renewal_tells_the_child_how_long_its_leases_are_held(monkeypatch):
    ids = make_jobs(2)
    kept, ran_out = claim("q", 2, worker="w")
    scoreboard = Scoreboard(1, 2)
    for lease, lease_slot in zip((kept, ran_out), scoreboard.lease_slots[0], strict=True):
        lease_slot.fill(lease.job_id, lease.fence, lease.token, lease_seconds=600.0, lease_until=1.0)
    expire(ran_out)
    monitor = Monitor(Options(Selection(), "default", lease_seconds=600.0), scoreboard)
    monkeypatch.setattr(monitor, "_living", lambda: [(0, "w")])
    begun = time.monotonic()
    monitor.renew()
    renewed, late = scoreboard.lease_slots[0]
    assert [renewed.job_id, late.job_id] == ids
    # Never later than it ends, and a little earlier where the other one makes it read what is left.
    assert begun + 590 <= renewed.lease_until <= time.monotonic() + 600
    assert late.lease_until == 1.0


@pytest.mark.django_db
def test_a_renewal_without_leases_still_asks_the_database_for_an_answer(monkeypatch, django_assert_num_queries):
    monitor = Monitor(Options(Selection(), "default"), Scoreboard(1, 1))
    monkeypatch.setattr(monitor, "_living", lambda: [(0, "w")])
    with django_assert_num_queries(1):
        monitor.renew()
