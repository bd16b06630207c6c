"""How jobs ended, and how long they waited and ran: what is counted, added up, stored in rows and read from them.

Times are counted by fixed bounds, so that counts of many processes and minutes can be added up.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from jobqueue.models import JobStat

#: upper bound of each bucket in seconds; one more bucket has what is longer
BOUNDS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0,
)  # fmt: skip
BUCKETS = len(BOUNDS_SECONDS) + 1
#: pairs of the number of a bucket and the count of its runs
Buckets: TypeAlias = Iterable[tuple[int, int]]

_COUNTS = ("done", "retried", "dead", "canceled", "lost", "runs", "wait_us", "run_us")
_TIMES = ("wait_times", "run_times")
#: columns of rows of which readers take the sum, and those of which they take the largest value
SUMS = tuple(name for name in _COUNTS if name != "lost")
MOST = ("wait_us_max", "run_us_max")
#: the columns of JobStat that are counted
COLUMNS = (*_COUNTS, *MOST, *_TIMES)


class Kind(NamedTuple):
    """A task in a queue; the task is "" for raw rows."""

    queue: str
    task: str


def _empty() -> list[int]:
    return [0] * BUCKETS


@dataclass(slots=True, kw_only=True)
class Ends:
    """The columns of JobStat. `wait_times` and `run_times` count runs by BOUNDS_SECONDS; None: they are not known.

    Each end is counted in one of the first four.
    """

    done: int = 0
    retried: int = 0
    dead: int = 0
    canceled: int = 0
    lost: int = 0
    runs: int = 0
    wait_us: int = 0
    wait_us_max: int = 0
    run_us: int = 0
    run_us_max: int = 0
    wait_times: list[int] | None = field(default_factory=_empty)
    run_times: list[int] | None = field(default_factory=_empty)

    @property
    def total(self) -> int:
        """How many ends are counted."""
        return self.done + self.retried + self.dead + self.canceled

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
        return None if self.wait_times is None else quantile(self.wait_times, share)

    def run_seconds(self, share: float) -> float | None:
        """The same of how long they ran."""
        return None if self.run_times is None else quantile(self.run_times, share)

    def add_run(self, wait_seconds: float, run_seconds: float) -> None:
        """Count the times of one run."""
        wait, run = max(0.0, wait_seconds), max(0.0, run_seconds)
        wait_us, run_us = int(1e6 * wait), int(1e6 * run)
        self.runs += 1
        self.wait_us += wait_us
        self.run_us += run_us
        self.wait_us_max, self.run_us_max = max(self.wait_us_max, wait_us), max(self.run_us_max, run_us)
        for times, seconds in ((self.wait_times, wait), (self.run_times, run)):
            assert times is not None
            times[bucket_of(seconds)] += 1

    def add(self, other: Ends) -> None:
        """Add those of `other`. Its histograms, and these, must be known."""
        self.lost += other.lost
        self.add_sums([getattr(other, name) for name in (*SUMS, *MOST)])
        self.add_times(enumerate(other.wait_times or ()), enumerate(other.run_times or ()))

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
        for mine, more in ((self.wait_times, waits), (self.run_times, run_times)):
            assert mine is not None
            for number, count in more:
                mine[number] += times * count

    def forget_times(self) -> None:
        """Make the histograms unknown."""
        self.wait_times = self.run_times = None

    def columns(self) -> dict[str, object]:
        """The values of COLUMNS as a row has them."""
        numbers: dict[str, object] = {name: getattr(self, name) for name in (*_COUNTS, *MOST)}
        return numbers | {
            name: {str(number): count for number, count in enumerate(getattr(self, name) or ()) if count}
            for name in _TIMES
        }

    @classmethod
    def of(cls, row: JobStat) -> Ends:
        """Those of a row. Buckets that this version does not know are left out."""
        found = cls(**{name: getattr(row, name) for name in (*_COUNTS, *MOST)})
        found.add_times(_known(row.wait_times), _known(row.run_times))
        return found


def bucket_of(seconds: float) -> int:
    """The number of the bucket that counts `seconds`."""
    return bisect_left(BOUNDS_SECONDS, seconds)


def buckets(histogram: str) -> tuple[tuple[int, int], ...]:
    """Those of a stored histogram, a text of JSON."""
    return tuple(_known(json.loads(histogram)))


def _known(histogram: object) -> Iterator[tuple[int, int]]:
    """(Number of a bucket, count) of a stored histogram, without what a later version or plain SQL has written."""
    for number, count in histogram.items() if isinstance(histogram, dict) else ():
        if number.isdecimal() and int(number) < BUCKETS and type(count) is int:
            yield int(number), count


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The time that `share` (0 to 1) of the counted ones did not exceed, in seconds; None if nothing was counted.

    Interpolated within its bucket, as Prometheus' histogram_quantile() does; of the last bucket its lower bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below = share * total, 0
    for number, count in enumerate(counts[: len(BOUNDS_SECONDS)]):
        if count and below + count >= rank:
            lower = BOUNDS_SECONDS[number - 1] if number else 0.0
            return lower + (BOUNDS_SECONDS[number] - lower) * (rank - below) / count
        below += count
    return BOUNDS_SECONDS[-1]
