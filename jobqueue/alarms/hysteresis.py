"""Decides when an alarm begins and ends, so that none flaps around its threshold. Plain code."""

from __future__ import annotations

from typing import NamedTuple

#: looks in a row that decide
LOOKS = 2
#: an alarm ends when the figure is below this share of its threshold; of a minimum, above this
END_BELOW, END_ABOVE = 0.8, 1.25
#: figures whose threshold is a minimum
MINIMA = frozenset({"throughput_per_minute"})


class Standing(NamedTuple):
    """Whether an alarm fires, and how many looks in a row have found the figure on the other side."""

    firing: bool = False
    looks: int = 0


def is_reached(name: str, value: float, threshold: float) -> bool:
    """Whether the figure is bad: at the threshold or above it; of a minimum, below it."""
    return value < threshold if name in MINIMA else value >= threshold


def is_over(name: str, value: float, threshold: float) -> bool:
    """Whether the figure is good again, clearly."""
    return value > END_ABOVE * threshold if name in MINIMA else value < END_BELOW * threshold


def after_look(before: Standing, name: str, value: float, threshold: float, *, in_a_row: bool) -> Standing:
    """How an alarm stands after a look. It changes with LOOKS looks in a row that say so.

    `in_a_row`: the last look was not too long ago to count. A figure between the two bounds begins and ends nothing.
    """
    if not (is_over if before.firing else is_reached)(name, value, threshold):
        return Standing(before.firing)
    looks = 1 + (before.looks if in_a_row else 0)
    return Standing(not before.firing) if looks >= LOOKS else Standing(before.firing, looks)
