"""How many jobs run at once: all while nothing is wrong, half after trouble, all again within seconds."""

from collections import Counter

import pytest

from jobqueue.worker.child import child
from jobqueue.worker.child.child import ConcurrencyLimit
from jobqueue.worker.shared.scoreboard import ProcessSlot
from tests.clocks import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def counted(monkeypatch):
    """The counter of redone transactions, empty."""
    found = Counter()
    monkeypatch.setattr(child, "retries", found)
    return found


@pytest.fixture
def made(clock, counted):
    def make(most=16, adaptive=True):
        return ConcurrencyLimit(most, ProcessSlot(), "w", adaptive=adaptive, clock=clock)

    return make


def claim(subject, clock, seconds, count=10, room=10):
    subject.begin()
    clock.go(seconds)
    subject.claimed(count, room)


def test_it_starts_full_and_stays_full_while_nothing_is_wrong(made, clock):
    subject = made()
    for _ in range(100):
        claim(subject, clock, 0.005)
        assert subject.limit(16) == 16


def test_an_absent_database_halves_the_level_and_no_lower_than_1(made, clock):
    subject, seen = made(), []
    for _ in range(6):
        subject.outage_began()
        clock.go(0.6)
        seen.append(subject.limit(16))
    assert seen == [8, 4, 2, 1, 1, 1]


def test_many_signs_of_one_trouble_count_once(made):
    subject = made()
    for _ in range(10):
        subject.outage_began()
    assert subject.level == 8


@pytest.mark.parametrize("most", [1, 2, 4, 7, 16, 1000])
def test_it_is_back_at_full_within_five_seconds(made, clock, most):
    subject = made(most)
    for _ in range(12):
        subject.outage_began()
        clock.go(1)
    assert subject.limit(most) == 1
    subject.outage_ended()
    begun = clock.now
    while subject.limit(subject.level) < most:
        claim(subject, clock, 0.01)
    assert clock.now - begun < 5


def test_it_comes_back_while_long_jobs_run_and_nothing_can_be_claimed(made, clock):
    subject = made(8)
    subject.outage_began()
    subject.outage_ended()
    clock.go(10)
    assert subject.limit(8) == 5
    clock.go(0.5)
    assert subject.limit(8) == 6


def test_it_does_not_rise_while_the_database_is_unreachable(made, clock):
    subject = made(8)
    subject.outage_began()
    clock.go(60)
    assert subject.limit(8) == 4


def test_it_does_not_rise_while_no_work_waits(made, clock):
    subject = made(8)
    subject.outage_began()
    subject.outage_ended()
    clock.go(10)
    claim(subject, clock, 0.01, count=0)
    assert subject.limit(0) == 4


def test_a_redone_transaction_now_and_then_changes_nothing(made, clock, counted):
    subject = made()
    for _ in range(50):
        counted["1213"] += 1
        claim(subject, clock, 0.6)
        assert subject.limit(16) == 16


def test_a_burst_of_redone_transactions_halves_the_level(made, clock, counted):
    subject = made()
    for _ in range(3):
        counted["1213"] += 1
        claim(subject, clock, 0.01)
    assert subject.level == 8


def test_claims_that_are_slow_again_and_again_halve_the_level(made, clock):
    subject = made()
    for _ in range(50):
        claim(subject, clock, 0.005)
    claim(subject, clock, 1.0)
    claim(subject, clock, 1.0)
    assert subject.level == 16, "two may be chance"
    claim(subject, clock, 1.0)
    assert subject.level == 8


def test_a_server_that_is_slow_by_nature_is_not_taken_for_a_sick_one(made, clock):
    subject = made()
    for _ in range(100):
        claim(subject, clock, 0.8)
    assert subject.level == 16


def test_a_server_that_stays_slower_becomes_the_usual_in_the_end(made, clock):
    subject = made()
    for _ in range(50):
        claim(subject, clock, 0.01)
    for _ in range(400):
        claim(subject, clock, 0.5)
        subject.limit(16)
    assert subject.level == 16


def test_not_adaptive_means_always_full(made, clock):
    subject = made(adaptive=False)
    for _ in range(5):
        subject.outage_began()
        clock.go(1)
    assert subject.limit(16) == 16
