"""What a monitor may not do is left out for a while, and told once."""

import logging
from dataclasses import make_dataclass

import pytest
from django.db import OperationalError, ProgrammingError

from jobqueue.worker.monitor import housekeeping
from tests.settings import VENDOR

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
    monkeypatch.setattr(housekeeping.time, "monotonic", lambda: clock[0])
    refused = Refused()
    found = housekeeping.Chores("default")
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


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="an error of these servers")
@pytest.mark.django_db
@pytest.mark.parametrize(
    "error",
    [(3024, "maximum statement execution time exceeded"), (1969, "max_statement_time exceeded"), (1205, "lock wait")],
)
def test_a_look_that_takes_the_server_too_long_is_left_out_and_says_nothing_of_the_database(error, caplog):
    slow = Refused(OperationalError(*error))
    found = housekeeping.Chores("default")
    found.watches = {"some cleaner": slow.run_once}
    with caplog.at_level(logging.WARNING):
        found.watch()
        found.watch()
    assert slow.calls == 1
    assert "skipping the some cleaner for 60 s" in caplog.text
