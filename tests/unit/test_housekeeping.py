"""What a monitor may not do is left out for a while, and told once."""

import logging
from dataclasses import make_dataclass

import pytest
from django.db import ProgrammingError

from jobqueue.exceptions import DatabaseBusy
from jobqueue.worker.monitor import chores
from tests.marks import finding

Found = make_dataclass("Found", [("deleted", int)])


class Refused:
    def __init__(self, error=None):
        self.calls, self.refused = 0, True
        self.error = error or ProgrammingError(1142, "DELETE command denied")

    def run_once(self, settings, *, using):
        self.calls += 1
        if self.refused:
            raise self.error
        return Found(0)


@pytest.mark.django_db
def test_a_chore_that_is_refused_is_tried_again_after_a_minute(monkeypatch, caplog):
    clock = [1000.0]
    monkeypatch.setattr(chores.time, "monotonic", lambda: clock[0])
    refused = Refused()
    found = chores.Chores("default")
    found.sweepers = {"some cleaner": refused.run_once}
    with caplog.at_level(logging.WARNING):
        found.sweep()
        clock[0] += 30
        found.sweep()
        assert refused.calls == 1
        clock[0] += 31
        found.sweep()
        refused.refused = False
        clock[0] += 61
        found.sweep()
        found.sweep()
    assert refused.calls == 4
    assert len([r for r in caplog.records if "some cleaner" in r.message]) == 1


@finding("S-A1")
@pytest.mark.django_db
def test_a_chore_that_raises_something_unexpected_leaves_the_others_their_turn(caplog):
    broken, other = Refused(TypeError("a row of another shape")), Refused()
    other.refused = False
    found = chores.Chores("default")
    found.openers = {"broken one": broken.run_once, "other": other.run_once}
    for _ in range(3):
        found.open_lanes()
    assert (broken.calls, other.calls) == (1, 3)
    assert "skipping the broken one for 60 s: a row of another shape" in caplog.text
    assert "TypeError" in caplog.text


@pytest.mark.django_db
def test_a_chore_that_meets_a_lock_leaves_the_others_their_turn_and_is_tried_each_time():
    busy, other = Refused(DatabaseBusy("locked")), Refused()
    other.refused = False
    found = chores.Chores("default")
    found.openers = {"busy one": busy.run_once, "other": other.run_once}
    for _ in range(3):
        with pytest.raises(DatabaseBusy):
            found.open_lanes()
    assert (busy.calls, other.calls) == (3, 3)
