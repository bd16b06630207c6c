"""What is counted of the jobs of one task in one queue, and the sums of a process that are not written yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Literal, NamedTuple, TypeAlias

from jobqueue.models import JobStat, JobStatTotal
from jobqueue.models.stat import CountedEnds
from jobqueue.stats.histogram import BUCKETS, bucket_of, known

#: the columns of CountedEnds that count ends; each end is in one of the first four
End: TypeAlias = Literal["done", "retried", "dead", "canceled"]
#: most pairs of queue and task that a process counts between two writes; more are counted together as OTHERS
KINDS_MAX = 2000
#: rows of one read: the totals, and what processes have written in the last minutes
ROWS_MAX = 50_000

_SUMS = ("done", "retried", "dead", "canceled", "lost", "runs", "wait_us", "run_us")
_MOST = ("wait_us_max", "run_us_max")
#: the columns of CountedEnds that are counted
COLUMNS = (*_SUMS, *_MOST, "wait_times", "run_times")


class Kind(NamedTuple):
    """A task in a queue; the task is "" for raw rows."""

    queue: str
    task: str


OTHERS = Kind("", "")


def _empty() -> list[int]:
    return [0] * BUCKETS


@dataclass(slots=True)
class Counts:
    """The counts of one kind; the columns of CountedEnds."""

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
    wait_times: list[int] = field(default_factory=_empty)
    run_times: list[int] = field(default_factory=_empty)

    @property
    def ends(self) -> int:
        """How many ends are counted."""
        return self.done + self.retried + self.dead + self.canceled

    def add_run(self, wait_seconds: float, run_seconds: float) -> None:
        """Count the times of one run."""
        wait, run = max(0.0, wait_seconds), max(0.0, run_seconds)
        wait_us, run_us = int(1e6 * wait), int(1e6 * run)
        self.runs += 1
        self.wait_us += wait_us
        self.run_us += run_us
        self.wait_us_max, self.run_us_max = max(self.wait_us_max, wait_us), max(self.run_us_max, run_us)
        self.wait_times[bucket_of(wait)] += 1
        self.run_times[bucket_of(run)] += 1

    def add(self, other: Counts) -> None:
        """Add the counts of `other`."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _MOST:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for mine, its in ((self.wait_times, other.wait_times), (self.run_times, other.run_times)):
            for number, count in enumerate(its):
                mine[number] += count

    def columns(self) -> dict[str, object]:
        """The values of COLUMNS as a row has them."""
        numbers: dict[str, object] = {name: getattr(self, name) for name in (*_SUMS, *_MOST)}
        return numbers | {name: _sparse(getattr(self, name)) for name in ("wait_times", "run_times")}

    @classmethod
    def of(cls, row: CountedEnds) -> Counts:
        """The counts in a row. Buckets that this version does not know are left out."""
        found = cls(**{name: getattr(row, name) for name in (*_SUMS, *_MOST)})
        found.wait_times, found.run_times = _dense(row.wait_times), _dense(row.run_times)
        return found


def _sparse(counts: Iterable[int]) -> dict[str, int]:
    return {str(number): count for number, count in enumerate(counts) if count}


def _dense(histogram: object) -> list[int]:
    found = _empty()
    for number, count in known(histogram):
        found[number] += count
    return found


class Buffer:
    """What a process has counted since it last took the counts out. Any thread may count."""

    def __init__(self) -> None:
        # Reentrant: a signal handler or a finalizer may count while this thread does.
        self._lock = RLock()
        self._counts: dict[Kind, Counts] = {}

    def count_ends(self, ends: Mapping[tuple[Kind, End], int], *, lost: bool) -> None:
        """Count jobs by how they ended; `lost`: their leases ran out."""
        with self._lock:
            for (kind, end), number in ends.items():
                counts = self._of(kind)
                setattr(counts, end, getattr(counts, end) + number)
                if lost and end in ("retried", "dead"):
                    counts.lost += number

    def count_run(self, kind: Kind, wait_seconds: float, run_seconds: float) -> None:
        """Count the times of one run."""
        with self._lock:
            self._of(kind).add_run(wait_seconds, run_seconds)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been counted since the last take()."""
        return not self._counts

    def take(self) -> dict[Kind, Counts]:
        """What has been counted since the last call."""
        with self._lock:
            found, self._counts = self._counts, {}
        return found

    def _of(self, kind: Kind) -> Counts:
        found = self._counts.get(kind)
        if found is None:
            counted_as = kind if len(self._counts) < KINDS_MAX else OTHERS
            found = self._counts.setdefault(counted_as, Counts())
        return found


def read_totals(using: str) -> dict[Kind, Counts] | None:
    """The counts of each task in each queue, from the beginning; None if there are more than ROWS_MAX rows to add up.

    One statement, so that it sees a row of a process or the total that contains it, and never both or neither. What is
    read does not grow with the age of the statistics: the roll-up moves rows of processes into the totals after five
    minutes.
    """
    names = ("queue", "task", *COLUMNS)
    totals = JobStatTotal.objects.using(using).values_list(*names)
    lately = JobStat.objects.using(using).filter(span=JobStat.Span.PROCESS).values_list(*names)
    found = list(totals.union(lately, all=True)[: ROWS_MAX + 1])
    if len(found) > ROWS_MAX:
        return None
    sums: dict[Kind, Counts] = {}
    for queue, task, *values in found:
        row = JobStatTotal(queue=queue, task=task, **dict(zip(COLUMNS, values, strict=True)))
        sums.setdefault(Kind(queue, task), Counts()).add(Counts.of(row))
    return sums
