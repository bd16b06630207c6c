"""Cron expressions around each change of the clocks, against a calculation that looks at each minute."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from jobqueue.schedules.timing import Timing
from tests.schedules.test_timing import EXPRESSIONS, ZONES, calculated, changes_of, timedelta, utc

SINCE, UNTIL = utc(2024, 1, 1), utc(2031, 1, 1)


@pytest.mark.parametrize("name", ZONES)
def test_ticks_around_each_change_of_the_clocks(name, full, figure):
    """The ticks of 13 expressions in the 24 hours around each change, against a look at each minute of a wall clock."""
    zone = ZoneInfo(name)
    # A zone without changes: the nights in which others change.
    changes = changes_of(zone, SINCE, UNTIL) or changes_of(ZoneInfo("Europe/London"), SINCE, UNTIL)
    ticks = wrong = 0
    for change in changes if full else changes[:2]:
        since, until = change - timedelta(hours=9), change + timedelta(hours=15)
        for expression in EXPRESSIONS:
            found, older = Timing(cron=expression, timezone=name).newest(10_000, since, until)
            expected = calculated(expression, zone, since, until)
            ticks += len(expected)
            wrong += found != expected or older != 0
    assert not wrong
    figure("zone", name)
    figure("changes 2024 to 2030", len(changes_of(zone, SINCE, UNTIL)))
    figure("ticks compared / different", f"{ticks} / {wrong}")
