"""A child claims the jobs that it has opened at once, few at a time, and only while its threads have no room."""

from types import SimpleNamespace

import pytest

from jobqueue.transitions.claiming.candidates import Head
from jobqueue.worker.child import fetcher
from jobqueue.worker.child.fetcher import Fetcher, OpenedJobs
from jobqueue.worker.child.loop import FULL_SECONDS, Loop
from jobqueue.worker.child.sifting import UnknownTasks
from jobqueue.worker.run.pool import Accepted
from tests.marks import finding


@pytest.fixture
def clock(monkeypatch):
    at = SimpleNamespace(now=100.0)
    monkeypatch.setattr(fetcher, "time", SimpleNamespace(monotonic=lambda: at.now))
    return at


def test_what_was_opened_is_taken_once(clock):
    jobs = OpenedJobs()
    assert (jobs.take(4), jobs.wait_seconds) == ({}, None)
    jobs.add({"a": 1})
    jobs.add({"a": 1, "b": 9})
    assert jobs.wait_seconds == 0.0
    assert jobs.take(4) == {"a": 2, "b": 4}
    assert (jobs.take(4), jobs.wait_seconds) == ({}, None)


def test_the_next_ones_wait_a_little(clock):
    jobs = OpenedJobs()
    jobs.add({"a": 1})
    jobs.take(4)
    jobs.add({"a": 1})
    assert jobs.take(4) == {}
    assert jobs.wait_seconds == pytest.approx(fetcher.OPENED_SECONDS)
    clock.now += fetcher.OPENED_SECONDS
    assert jobs.take(4) == {"a": 1}


def test_a_claim_of_all_there_is_room_for_makes_them_nothing_special(clock):
    jobs = OpenedJobs()
    jobs.add({"a": 1})
    jobs.forget()
    assert (jobs.take(4), jobs.wait_seconds) == ({}, None)


class Hands:
    """A fetcher whose queues have jobs."""

    def __init__(self, room, limit=50, allowed=4):
        self.claims = []
        self.slot = SimpleNamespace(room=0)
        self.fetcher = found = Fetcher.__new__(Fetcher)
        found.opened, found._met, found._strays, found.empty = OpenedJobs(), False, False, True
        found._unknown, found._claimer = UnknownTasks(), SimpleNamespace(more=False)
        found._pool = SimpleNamespace(allowed=allowed, places=0)
        concurrency = SimpleNamespace(begin=lambda: None, claimed=lambda claimed, asked: None)
        found._child = SimpleNamespace(slot=self.slot, concurrency=concurrency)
        found.outage = SimpleNamespace(over=lambda: None, failures=0)
        found._room, found._limit, found._batch = lambda: room, lambda: limit, lambda: 100
        found._limited_wait = lambda: False
        found._demand = SimpleNamespace(wants_coroutines=lambda places: False)
        found._heads = lambda guess: [Head(name, 0, True) for name in ("a", "b", "c")]
        found._ask = lambda queue, room, places: room
        found._claim_from, found._note, found._look_again = self.claim, lambda claimed, asked: None, lambda: None

    def claim(self, head, most, room, places):
        self.claims.append((head.queue, most))
        return Accepted(most, 0, [], most, 0)


def test_with_room_all_queues_are_asked_for_as_many_as_fit():
    hands = Hands(room=10)
    hands.fetcher.opened.add({"b": 1})
    assert hands.fetcher.claim() == 10
    assert hands.claims == [("a", 10)]
    assert hands.fetcher.opened.wait_seconds is None


def test_without_room_only_queues_of_opened_jobs_are_asked_for_these():
    hands = Hands(room=0)
    hands.fetcher.opened.add({"b": 1, "c": 9})
    assert hands.fetcher.claim() == 5
    assert hands.claims == [("b", 1), ("c", 4)]
    assert hands.fetcher.claim() is None
    assert hands.slot.room == 0, "no other process hands its jobs to this child"


@finding("F17")
def test_a_claim_that_has_left_jobs_is_followed_by_another_and_no_worker_leaves():
    """Also if it has only ended jobs that had expired."""
    hands = Hands(room=4)
    hands.fetcher._claim_from = lambda head, most, room, places: Accepted(0, 0, [], 0, 0)
    hands.fetcher._claimer.more = True
    assert hands.fetcher.claim() == 0
    assert (hands.fetcher.more, hands.fetcher.empty) == (True, False)
    hands.fetcher._claimer.more = False
    assert hands.fetcher.claim() == 0
    assert (hands.fetcher.more, hands.fetcher.empty) == (False, True)


@finding("F17")
def test_opened_jobs_that_a_claim_has_left_are_asked_for_again(clock):
    hands = Hands(room=0)
    hands.fetcher._claimer.more = True
    hands.fetcher._claim_from = lambda head, most, room, places: Accepted(1, 0, [], 1, 0)
    hands.fetcher.opened.add({"b": 3})
    assert hands.fetcher.claim() == 1
    clock.now += fetcher.OPENED_SECONDS
    assert hands.fetcher.opened.take(4) == {"b": 2}


def test_without_room_and_opened_jobs_nothing_is_asked():
    hands = Hands(room=0)
    assert hands.fetcher.claim() is None
    assert hands.claims == []


def test_a_child_that_may_claim_nothing_does_not_look_again_and_again():
    hands = Hands(room=0, limit=0)
    hands.fetcher.opened.add({"b": 1})
    assert hands.fetcher.claim() is None
    assert hands.fetcher.opened.wait_seconds is None


def test_the_loop_wakes_for_opened_jobs_and_looks_at_them_in_time():
    loop, woken = Loop.__new__(Loop), []
    loop.fetcher, loop.pool = SimpleNamespace(opened=OpenedJobs()), SimpleNamespace(wake=lambda: woken.append(True))
    assert loop._pause(None) == FULL_SECONDS
    loop.opened({"q": 1})
    assert woken == [True]
    assert loop._pause(None) == 0.0
    loop.fetcher.opened.take(1)
    loop.opened({"q": 1})
    assert 0.0 < loop._pause(None) <= fetcher.OPENED_SECONDS
