"""The settler keeps what it could not write, whatever went wrong meanwhile."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from jobqueue.worker.child import settler
from jobqueue.worker.run.pool import Mailbox
from tests.patience import wait_until


class Outage:
    """Of a database that is there."""

    next_try = 0.0

    def met(self, error):
        pass

    def over(self):
        pass


class Pool:
    """Hands over what has ended, and is told what is written."""

    hurried, waiting, low_water = False, 0, 0

    def __init__(self):
        self.ends, self.written, self.errors = Mailbox(), [], []
        self.ended = self.ends.take

    def settled(self, leases):
        if self.errors:
            raise self.errors.pop()
        self.written += leases

    def wake(self):
        pass


def child_with(pool, outage=None):
    """What a settler needs of its child."""
    slot = SimpleNamespace(finished=0, failed=0, lost=0)
    told = SimpleNamespace(ended=lambda outcomes: None)
    shared = {"breakers": told, "budget": told, "turn": nullcontext(), "watched": nullcontext}
    return SimpleNamespace(pool=pool, slot=slot, using="default", outage=lambda work: outage or Outage(), **shared)


def outcome(number):
    return SimpleNamespace(key=(number, 1), lease=number, ack_each=False, coroutine=True, run_seconds=0.0)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_an_unexpected_error_between_two_writes_loses_no_end(monkeypatch, error):
    monkeypatch.setattr(settler, "settle", lambda outcomes, slot, again: [])
    pool = Pool()
    pool.errors.append(error("unexpected"))
    found = settler.Settler(child_with(pool), threads=1)
    pool.ends.put(outcome(1), outcome(2))
    wait_until(lambda: pool.written == [1, 2])
    assert found.unwritten == []


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_an_outcome_that_ends_its_write_unexpectedly_is_put_aside_alone(monkeypatch, caplog, error):
    again_of = {}

    def settle(outcomes, slot, again):
        if any(one.lease == 2 for one in outcomes):
            raise error("unexpected")
        again_of.update((one.lease, again) for one in outcomes)
        return []

    monkeypatch.setattr(settler, "settle", settle)
    pool = Pool()
    found = settler.Settler(child_with(pool), threads=1)
    pool.ends.put(outcome(1), outcome(2), outcome(3))
    wait_until(lambda: pool.written == [1, 2, 3], what="three free places")
    assert again_of == {1: True, 3: True}, "the first write of all may have been committed"
    assert "job 2: its outcome could not be written; its lease will expire and be reaped" in caplog.text
    assert found.unwritten == []
