"""How many jobs ended, and how long they waited and ran: what is added up of rows of statistics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from jobqueue.stats.histogram import BUCKETS, known, quantile

#: columns of the rows of which the sum is taken, and those of which the largest value is
SUMS = ("done", "retried", "dead", "canceled", "runs", "wait_us", "run_us")
MOST = ("wait_us_max", "run_us_max")


#: pairs of the number of a bucket and the count of its runs
Buckets: TypeAlias = Iterable[tuple[int, int]]


@dataclass(slots=True, kw_only=True)
class Ends:
    """Sums of rows. `waits` and `run_times` count runs by stats.histogram; None: too many rows to add up."""

    done: int = 0
    retried: int = 0
    dead: int = 0
    canceled: int = 0
    runs: int = 0
    wait_us: int = 0
    run_us: int = 0
    wait_us_max: int = 0
    run_us_max: int = 0
    waits: list[int] | None = field(default_factory=lambda: [0] * BUCKETS)
    run_times: list[int] | None = field(default_factory=lambda: [0] * BUCKETS)

    @property
    def ended(self) -> int:
        """How many jobs ended DONE or FAILED."""
        return self.done + self.dead

    @property
    def error_rate(self) -> float | None:
        """The share of the runs that failed or were lost; None if none ended."""
        ended = self.done + self.retried + self.dead
        return (self.retried + self.dead) / ended if ended else None

    @property
    def mean_wait_seconds(self) -> float | None:
        """How long the runs waited on average; None if none ended."""
        return self.wait_us / 1e6 / self.runs if self.runs else None

    @property
    def mean_run_seconds(self) -> float | None:
        """How long the runs took on average; None if none ended."""
        return self.run_us / 1e6 / self.runs if self.runs else None

    def wait_seconds(self, share: float) -> float | None:
        """How long that share (0 to 1) of the runs waited at most; None if none ended, or if it is not known."""
        return None if self.waits is None else quantile(self.waits, share)

    def run_seconds(self, share: float) -> float | None:
        """The same of how long they ran."""
        return None if self.run_times is None else quantile(self.run_times, share)

    def add(self, other: Ends) -> None:
        """Add the sums of `other`. Its histograms, and these, must be known."""
        self.add_sums([getattr(other, name) for name in (*SUMS, *MOST)])
        self.add_times(enumerate(other.waits or ()), enumerate(other.run_times or ()))

    def add_sums(self, values: Sequence[int]) -> None:
        """Add the values of SUMS and MOST, in this order."""
        # By name, and not by setattr(): thousands of groups are added up for a page.
        done, retried, dead, canceled, runs, wait_us, run_us, wait_us_max, run_us_max = map(int, values)
        self.done, self.retried, self.dead = self.done + done, self.retried + retried, self.dead + dead
        self.canceled, self.runs = self.canceled + canceled, self.runs + runs
        self.wait_us, self.run_us = self.wait_us + wait_us, self.run_us + run_us
        self.wait_us_max, self.run_us_max = max(self.wait_us_max, wait_us_max), max(self.run_us_max, run_us_max)

    def add_times(self, waits: Buckets, run_times: Buckets, times: int = 1) -> None:
        """Add counts of runs, so many times."""
        for mine, more in ((self.waits, waits), (self.run_times, run_times)):
            assert mine is not None
            for number, count in more:
                mine[number] += times * count


def buckets(histogram: str) -> tuple[tuple[int, int], ...]:
    """Those of a stored histogram, a text of JSON."""
    return tuple(known(json.loads(histogram)))
