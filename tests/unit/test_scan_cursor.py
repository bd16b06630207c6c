"""A floor is as old as the look that it came from, however long the claims took."""

from datetime import UTC, datetime

import pytest

from jobqueue.transitions.claiming import queue_memory
from jobqueue.transitions.claiming.candidates import Head
from jobqueue.transitions.claiming.queue_memory import CURSOR_SECONDS, NO_CURSOR, ScanCursor

DUE = datetime(2026, 1, 1, tzinfo=UTC)
HEAD = Head("q", 9, all_due=False)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(queue_memory.time, "monotonic", lambda: now[0])
    return now


def test_a_floor_whose_time_ran_out_during_the_claim_gets_no_new_time(clock):
    before = ScanCursor(0, DUE, None, good_until=99.9, top=9, walked_at=99.0)
    after = before.moved(0, DUE, None, HEAD, walked=False)
    assert (after.good_until, after.walked_at) == (99.9, 99.0)
    assert not after.follows(HEAD)


def test_a_walk_is_noted_when_it_was_made(clock):
    before = ScanCursor(0, DUE, None, good_until=100.5, top=9, walked_at=99.0)
    assert before.moved(0, DUE, None, HEAD, walked=True).walked_at == 100.0


@pytest.mark.parametrize("before", [NO_CURSOR, ScanCursor(3, DUE, None, good_until=100.5)])
def test_a_level_that_is_new_begins_anew(clock, before):
    after = before.moved(0, DUE, None, HEAD, walked=True)
    assert (after.level, after.good_until, after.walked_at) == (0, 100.0 + CURSOR_SECONDS, 100.0)
