"""A claimer that found its claims slow looks only for what is new, and for no longer than a share of what they took."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from jobqueue import heads
from jobqueue.transitions import slow_looks
from jobqueue.transitions.slow_looks import SlowLooks

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(slow_looks.time, "monotonic", lambda: now[0])
    return now


def row(priority=0, waited=0.0):
    return SimpleNamespace(priority=priority, now=NOW, due_at=NOW - timedelta(seconds=waited))


def looked(slow, *rows, took=0.1, full=False, levels=(), aged=()):
    now = slow_looks.time.monotonic()
    slow.looked("q", levels, rows, now - took, full=full, aged=aged)


def test_quick_claims_are_made_from_the_head(clock):
    slow = SlowLooks()
    looked(slow, row(), took=heads.QUICK_SECONDS / 2)
    assert slow.ages("q") == {}


def test_a_slow_one_that_found_all_is_followed_by_looks_for_what_came_since(clock):
    slow = SlowLooks()
    looked(slow, row(5), levels=[9, 5])
    clock[0] += 0.5
    assert slow.ages("q") == pytest.approx(dict.fromkeys((5, 9), 0.6 + heads.COMMIT_SECONDS))
    assert slow.ages("other") == {}
    clock[0] += 0.6
    assert slow.ages("q") == {}


def test_one_that_may_have_left_some_is_followed_by_looks_from_its_last_job(clock):
    slow = SlowLooks()
    looked(slow, row(9, 70), row(5, 50), row(5, 40), full=True)
    assert slow.ages("q") == pytest.approx({9: 0.1 + heads.COMMIT_SECONDS, 5: 40.1 + heads.COMMIT_SECONDS})


def test_what_is_known_grows_younger_but_is_not_known_for_longer(clock):
    slow = SlowLooks()
    looked(slow, row())
    clock[0] += 0.9
    looked(slow, row(), took=0.2, aged=[0])
    assert slow.ages("q") == pytest.approx({0: 0.2 + heads.COMMIT_SECONDS})
    clock[0] += 0.2
    assert slow.ages("q") == {}


def test_a_look_that_was_not_whole_makes_nothing_known(clock):
    slow = SlowLooks()
    looked(slow, row(), aged=[0])
    assert slow.ages("q") == {}


def test_however_slow_claims_are_the_head_is_looked_at_every_ten_seconds(clock):
    slow = SlowLooks()
    looked(slow, row(), took=600.0)
    clock[0] += heads.PAUSE_SECONDS_MAX
    assert slow.ages("q") == {}


def test_a_job_that_has_been_due_for_thousands_of_years_is_no_beginning(clock):
    slow = SlowLooks()
    looked(slow, SimpleNamespace(priority=0, now=NOW, due_at=datetime(1, 1, 2, tzinfo=UTC)), full=True)
    assert slow.ages("q") == {}
