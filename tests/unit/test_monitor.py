"""What the monitor does with a duty that fails, and with what waits in a child."""

import logging
import time

import pytest

from jobqueue.exceptions import DatabaseBusy
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


def test_an_outage_is_counted_once_however_often_the_monitor_tries(caplog, monkeypatch):
    scoreboard = Scoreboard(1, 1)
    monitor, header = Monitor(Options(Selection(), "default"), scoreboard), scoreboard.header
    monkeypatch.setattr(monitor, "renew", lambda: None)

    def refused():
        raise DatabaseBusy("behind a lock")

    for outages in (1, 2):
        monitor._duty(refused)
        monitor._duty(refused)
        assert (header.database_down, header.database_outages) == (1, outages)
        assert header.database_down_since == monitor.outage.since
        assert monitor.next_renewal == monitor.next_flags == monitor.outage.next_try
        monitor._duty(monitor.renew)
        assert (header.database_down, header.database_down_since) == (0, 0.0)
        assert header.answers_since
    assert [line.split(":")[0] for line in caplog.messages if "renew leases" in line] == [
        "the monitor cannot renew leases",
        "the monitor can renew leases",
    ] * 2


def test_a_monitor_that_replaces_one_that_hung_goes_on_with_its_outage():
    scoreboard = Scoreboard(1, 1)
    since = time.monotonic() - 30
    scoreboard.header.note_outage(since)
    monitor = Monitor(Options(Selection(), "default"), scoreboard)
    assert (monitor.outage.failures, monitor.outage.since) == (1, since)


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
