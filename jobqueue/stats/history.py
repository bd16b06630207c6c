"""What ended in each part of a span of time, and how long jobs waited and ran, from the rows of statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.db.models import Max, QuerySet, Sum

from jobqueue.db.time_limit import time_limit
from jobqueue.models import JobStat
from jobqueue.stats.histogram import BUCKETS, quantile

#: how long a read may take
READ_SECONDS = 2.0
#: rows whose histograms are added up; of more of them the averages alone are told
ROWS_MAX = 10_000
_SUMS = ("done", "retried", "dead", "canceled", "runs", "wait_us", "run_us")
_MOST = ("wait_us_max", "run_us_max")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Part:
    """The ends of one part. `waits` and `run_times` count runs by stats.histogram; None: too many rows to add up."""

    begins_at: datetime
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

    def wait_seconds(self, share: float) -> float | None:
        """How long that share (0 to 1) of the runs waited at most; None if none ended, or if it is not known."""
        return None if self.waits is None else quantile(self.waits, share)

    def run_seconds(self, share: float) -> float | None:
        """The same of how long they ran."""
        return None if self.run_times is None else quantile(self.run_times, share)

    @property
    def mean_wait_seconds(self) -> float | None:
        """How long the runs waited on average; None if none ended."""
        return self.wait_us / 1e6 / self.runs if self.runs else None


def read_history(
    now: datetime, length: timedelta, part: timedelta, *, using: str, queue: str | None = None, task: str | None = None
) -> list[Part]:
    """The parts of the `length` before `now`, oldest first, of all jobs or those of a queue or task.

    Parts begin at whole multiples of `part` in UTC; the last one contains `now`, an instant of the database's clock.
    Rows of hours and days count for the part in which they begin. Two statements. Raises StatementTimeout.
    """
    first = _floor(now - length, part)
    parts = {
        begins_at: Part(begins_at)
        for begins_at in (first + number * part for number in range((_floor(now, part) - first) // part + 1))
    }
    rows = JobStat.objects.using(using).filter(span__in=JobStat.Span.values, begins_at__gte=first, begins_at__lte=now)
    if queue is not None:
        rows = rows.filter(queue=queue)
    if task is not None:
        rows = rows.filter(task=task)
    with time_limit(READ_SECONDS, using=using) as limit:
        limit.check()
        _add_counts(parts, rows, part)
        limit.check()
        _add_times(parts, rows, part)
    return [*parts.values()]


def _floor(instant: datetime, part: timedelta) -> datetime:
    return instant - (instant - _EPOCH) % part


def _add_counts(parts: Mapping[datetime, Part], rows: QuerySet[JobStat], length: timedelta) -> None:
    most = {f"most_{name}": Max(name) for name in _MOST}
    sums = rows.order_by().values("begins_at").annotate(**{f"sum_{name}": Sum(name) for name in _SUMS}, **most)
    names = ("begins_at", *(f"sum_{name}" for name in _SUMS), *most)
    for begins_at, *values in sums.values_list(*names):
        part = parts[_floor(begins_at, length)]
        for name, value in zip(_SUMS, values, strict=False):
            setattr(part, name, getattr(part, name) + int(value))
        for name, value in zip(_MOST, values[len(_SUMS) :], strict=True):
            setattr(part, name, max(getattr(part, name), int(value)))


def _add_times(parts: Mapping[datetime, Part], rows: QuerySet[JobStat], length: timedelta) -> None:
    found = list(rows.order_by().values_list("begins_at", "wait_times", "run_times")[: ROWS_MAX + 1])
    if len(found) > ROWS_MAX:
        for part in parts.values():
            part.waits = part.run_times = None
        return
    for begins_at, *histograms in found:
        part = parts[_floor(begins_at, length)]
        for counts, more in zip((part.waits, part.run_times), histograms, strict=True):
            assert counts is not None
            for number, count in _pairs(more):
                counts[number] += count


def _pairs(histogram: object) -> Iterator[tuple[int, int]]:
    """The buckets of a stored histogram; plain SQL may have written anything."""
    items: Iterable[tuple[object, object]] = histogram.items() if isinstance(histogram, dict) else ()
    for number, count in items:
        if isinstance(number, str) and number.isdigit() and int(number) < BUCKETS and type(count) is int:
            yield int(number), count
