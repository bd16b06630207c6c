"""What a monitor may not do is left out for a while, and told once."""

import logging
from collections import Counter
from contextlib import nullcontext

import pytest
from django.db import ProgrammingError

from jobqueue.exceptions import DatabaseBusy
from jobqueue.worker.monitor import chores
from jobqueue.worker.monitor.chores import Chore
from jobqueue.worker.monitor.housekeeping import Housekeeping
from jobqueue.worker.shared.scoreboard import Scoreboard
from tests.cli.helpers import options
from tests.marks import finding


class Refused:
    def __init__(self, error=None):
        self.calls, self.refused = 0, True
        self.error = error or ProgrammingError(1142, "DELETE command denied")

    def run_once(self, settings, *, using):
        self.calls += 1
        if self.refused:
            raise self.error
        return Counter(rows_deleted=0)


def chores_of(**steps):
    """Those of a worker whose table has nothing but these, with a turn in each round."""
    found = chores.Chores("default")
    found.table = [Chore(name.replace("_", " "), 0.0, step=step) for name, step in steps.items()]
    found._next = {chore.name: 0.0 for chore in found.table}
    return found


def take_turns(found):
    """One round; the errors that the turns raise."""
    errors = []
    for chore in found.due():
        try:
            found.take_turn(chore)
        except DatabaseBusy as error:
            errors.append(error)
    return errors


@pytest.mark.django_db
def test_a_chore_that_is_refused_is_tried_again_after_a_minute(monkeypatch, caplog):
    clock = [1000.0]
    monkeypatch.setattr(chores.time, "monotonic", lambda: clock[0])
    refused = Refused()
    found = chores_of(some_cleaner=refused.run_once)
    with caplog.at_level(logging.WARNING):
        take_turns(found)
        clock[0] += 30
        take_turns(found)
        assert refused.calls == 1
        clock[0] += 31
        take_turns(found)
        refused.refused = False
        clock[0] += 61
        take_turns(found)
        take_turns(found)
    assert refused.calls == 4
    assert len([r for r in caplog.records if "some cleaner" in r.message]) == 1


@finding("S-A1")
@pytest.mark.django_db
def test_a_chore_that_raises_something_unexpected_leaves_the_others_their_turn(caplog):
    broken, other = Refused(TypeError("a row of another shape")), Refused()
    other.refused = False
    found = chores_of(broken_one=broken.run_once, other=other.run_once)
    for _ in range(3):
        take_turns(found)
    assert (broken.calls, other.calls) == (1, 3)
    assert "skipping the broken one for 60 s: a row of another shape" in caplog.text
    assert "TypeError" in caplog.text


@pytest.mark.django_db
def test_a_chore_that_meets_a_lock_leaves_the_others_their_turn_and_is_tried_each_time():
    busy, other = Refused(DatabaseBusy("locked")), Refused()
    other.refused = False
    found = chores_of(busy_one=busy.run_once, other=other.run_once)
    for _ in range(3):
        assert take_turns(found) == [busy.error]
    assert (busy.calls, other.calls) == (3, 3)


def house(steps):
    """The housekeeping of a worker whose only other duty is to reap; and what it does, in its order."""
    found, done = Housekeeping(options(), Scoreboard(1, 1), list, lambda: None, None, nullcontext()), []
    for duty in ("write_ends", "tell_stacks", "renew_workers", "report_troubles", "look_for_alone"):
        setattr(found, duty, lambda: None)
    found.reap = lambda: done.append("reap")
    found._chores = chores_of(**steps)
    return found, done


@pytest.mark.django_db
def test_a_worker_reaps_between_two_chores_that_take_long(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(chores.time, "monotonic", lambda: clock[0])

    def slow(settings, *, using):
        clock[0] += 5
        done.append("slow")
        return Counter()

    found, done = house({"one": slow, "other": slow})
    found.round()
    assert done == ["reap", "slow", "reap", "slow", "reap"]


@pytest.mark.django_db
def test_after_a_chore_that_is_refused_the_others_have_their_turn_in_the_next_round():
    def refused(settings, *, using):
        done.append("refused")
        raise DatabaseBusy("locked")

    def other(settings, *, using):
        done.append("other")
        return Counter()

    def do(duty, name=""):
        try:
            duty()
        except DatabaseBusy:
            return False
        return True

    found, done = house({"refused": refused, "other": other})
    found._chores.table[0] = Chore("refused", 1000.0, step=refused)
    found.thread.do = do
    found.round()
    assert done == ["reap", "refused"]
    found.round()
    assert done == ["reap", "refused", "other"]


@pytest.mark.django_db
def test_a_chore_that_takes_its_time_is_bounded_and_goes_on_after_as_long(monkeypatch):
    clock, given, times = [1000.0], [], [0.5, 1.0]
    monkeypatch.setattr(chores.time, "monotonic", lambda: clock[0])

    def clean(settings, *, using, seconds):
        given.append(seconds)
        clock[0] += times.pop(0)
        return Counter(rows_deleted=5)

    found = chores.Chores("default")
    (chore,) = found.table = [Chore("some cleaner", 60.0, clean)]
    found._next = {chore.name: 0.0}
    assert [found.take_turn(chore) for _ in range(2)] == [None, 1.0]
    assert given == [chores.TURN_SECONDS] * 2
    assert not [*found.due()]
    clock[0] += 1.0
    assert [*found.due()] == [chore]


def test_the_table_has_each_chore_once():
    table = chores.Chores("default").table
    names, counts = [chore.name for chore in table], [name for chore in table for name in chore.counts]
    assert len(names) == len({*names})
    assert len(counts) == len({*counts})
    assert all(chore.whole or chore.step for chore in table)


def test_repeat_ends_with_the_work_or_with_the_time(monkeypatch):
    class Steps:
        more = True

        def run_once(self, settings, *, using):
            left[0] -= 1
            self.more = left[0] > 0
            return Counter(jobs_deleted=2)

    left = [3]
    assert chores.repeat(Steps(), None, using="default", seconds=60.0) == Counter(jobs_deleted=6)
    left = [3]
    assert chores.repeat(Steps(), None, using="default", seconds=0.0) == Counter(jobs_deleted=2)
