"""Where values and instants stand on the axes of a chart, and the round ones that are written beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

#: lines of the value axis above zero, and labels of the time axis, at most
VALUE_TICKS, TIME_TICKS = 4, 6
_STEPS = tuple(
    timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080, 43_200)
)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Scale:
    """The value axis: from the bottom to `top`, with lines at `ticks`. `log`: equal distances are equal factors."""

    bottom: float
    top: float
    ticks: tuple[float, ...]
    log: bool = False

    def height(self, value: float) -> float:
        """The share of the height, 0 to 1, at which a value stands."""
        if not self.log:
            return min(1.0, max(0.0, value / self.top))
        if value <= self.bottom:
            return 0.0
        return min(1.0, math.log(value / self.bottom) / math.log(self.top / self.bottom))


def linear(highest: float, *, whole: bool = False) -> Scale:
    """From 0 to a round number that is not below `highest`; with `whole`, no line stands between whole numbers."""
    if highest <= 0:
        return Scale(0.0, 1.0, (0.0, 1.0))
    raw = highest / VALUE_TICKS
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= raw * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    lines = math.ceil(highest / step - 1e-9)
    return Scale(0.0, lines * step, tuple(number * step for number in range(lines + 1)))


def logarithmic(values: Sequence[float]) -> Scale:
    """Whole powers of ten around the positive values."""
    found = [value for value in values if value > 0]
    if not found:
        return Scale(0.1, 1.0, (0.1, 1.0), log=True)
    low = math.floor(math.log10(min(found)) + 1e-9)
    high = max(low + 1, math.ceil(math.log10(max(found)) - 1e-9))
    every = math.ceil((high - low) / VALUE_TICKS)
    return Scale(10.0**low, 10.0**high, tuple(10.0**power for power in range(low, high + 1, every)), log=True)


def time_ticks(begins: datetime, ends: datetime, zone: tzinfo) -> list[tuple[datetime, str]]:
    """The round instants of a time zone between the two, TIME_TICKS at most, each with its label.

    Of ticks less than a day apart "12:05", and at midnight the date; else the date as "11-27".
    """
    length = ends - begins
    step = next((step for step in _STEPS if length / step <= TIME_TICKS), _STEPS[-1])
    first = begins.astimezone(zone)
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    # By the clock on the wall, so that a day with 23 hours moves no later tick.
    wall = midnight + step * math.ceil((first - midnight) / step)
    found = []
    while (instant := wall) <= ends.astimezone(zone):
        clock = step < _DAY and (wall.hour, wall.minute) != (0, 0)
        found.append((instant, f"{wall:%H:%M}" if clock else f"{wall:%m-%d}"))
        wall += step
    return found
