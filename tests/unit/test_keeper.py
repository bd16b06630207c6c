"""What the keeper does with a duty that fails, and with what waits in a child."""

import logging
import time

import pytest

from jobqueue.transitions import cancel, claim, reap
from jobqueue.worker.board import CANCEL, LOST, Board, Hold
from jobqueue.worker.flagging import flag
from jobqueue.worker.keeper import Keeper
from jobqueue.worker.options import Options
from jobqueue.worker.selection import Selection
from tests.factories import expire, make_jobs


def test_a_duty_that_fails_unexpectedly_keeps_no_other_from_being_done(caplog):
    keeper, done = Keeper(Options(Selection(), "default"), Board(1, 1)), []

    def broken():
        raise ValueError("no row like this was foreseen")

    with caplog.at_level(logging.ERROR, "jobqueue.worker"):
        keeper._duty(broken)
    keeper._duty(lambda: done.append(1))
    assert done == [1]
    assert "no row like this was foreseen" in caplog.text


@pytest.mark.django_db
@pytest.mark.parametrize("hold", [Hold.WAITING, Hold.RUNNING])
def test_what_waits_learns_of_its_end_as_what_runs_does(hold):
    make_jobs(3)
    leases = claim("q", 3, worker="w")
    board = Board(1, 3)
    for lease, entry in zip(leases, board.entries[0], strict=True):
        entry.job_id, entry.fence, entry.hold = lease.job_id, lease.fence, hold
    assert cancel(leases[1].job_id)
    expire(leases[2])
    reap()
    flag(board.in_hand(0), "default")
    assert [entry.flags for entry in board.entries[0]] == [0, CANCEL, LOST]


@pytest.mark.django_db
def test_a_renewal_tells_the_child_how_long_its_leases_are_held(monkeypatch):
    ids = make_jobs(2)
    kept, ran_out = claim("q", 2, worker="w")
    board = Board(1, 2)
    for lease, entry in zip((kept, ran_out), board.entries[0], strict=True):
        entry.job_id, entry.fence, entry.hold, entry.lease_until = lease.job_id, lease.fence, Hold.WAITING, 1.0
    expire(ran_out)
    keeper = Keeper(Options(Selection(), "default", lease_seconds=600.0), board)
    monkeypatch.setattr(keeper, "_living", lambda: [(0, "w")])
    begun = time.monotonic()
    keeper.renew()
    renewed, late = board.entries[0]
    assert [renewed.job_id, late.job_id] == ids
    assert begun + 600 <= renewed.lease_until <= time.monotonic() + 600
    assert late.lease_until == 1.0
