"""What ended in each part of a span of time, and how long jobs waited and ran, from the rows of statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Count, Max, QuerySet, Sum

from jobqueue.db.time_limit import time_limit
from jobqueue.models import JobStat
from jobqueue.stats.ends import MOST, SUMS, Ends, buckets

#: how long a read may take
READ_SECONDS = 2.0
#: rows whose histograms are added up; of more of them the averages alone are told
ROWS_MAX = 10_000
#: each of SUMS and MOST over the rows of a group, in this order
AGGREGATES = {f"all_{name}": Sum(name) for name in SUMS} | {f"all_{name}": Max(name) for name in MOST}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True, kw_only=True)
class Part(Ends):
    """The ends of one part of the time."""

    begins_at: datetime


def read_history(
    now: datetime, length: timedelta, part: timedelta, *, using: str, queue: str | None = None, task: str | None = None
) -> list[Part]:
    """The parts of the `length` before `now`, oldest first, of all jobs or those of a queue or task.

    Parts begin at whole multiples of `part` in UTC; the last one contains `now`, an instant of the database's clock.
    Rows of hours and days count for the part in which they begin. Two statements at most. Raises StatementTimeout.
    """
    parts = empty_parts(now, length, part)
    rows = rows_of(parts, now, using, queue, task)
    with time_limit(READ_SECONDS, using=using) as limit:
        limit.check()
        count = add_sums(parts, rows, part)
        limit.check()
        if count > ROWS_MAX:
            for one in parts.values():
                one.waits = one.run_times = None
        elif count:
            _add_times(parts, rows, part)
    return [*parts.values()]


def empty_parts(now: datetime, length: timedelta, part: timedelta) -> dict[datetime, Part]:
    """The parts of read_history() without ends, by their beginning."""
    first = begin_of(now - length, part)
    number = (begin_of(now, part) - first) // part + 1
    return {begins_at: Part(begins_at=begins_at) for begins_at in (first + place * part for place in range(number))}


def rows_of(
    parts: Mapping[datetime, Part], now: datetime, using: str, queue: str | None, task: str | None
) -> QuerySet[JobStat]:
    """The rows that begin in one of `parts`."""
    rows = JobStat.objects.using(using).filter(
        span__in=JobStat.Span.values, begins_at__gte=min(parts), begins_at__lte=now
    )
    if queue is not None:
        rows = rows.filter(queue=queue)
    if task is not None:
        rows = rows.filter(task=task)
    return rows.order_by()


def begin_of(instant: datetime, part: timedelta) -> datetime:
    """The beginning of the part that contains `instant`."""
    return instant - (instant - _EPOCH) % part


def add_sums(parts: Mapping[datetime, Part], rows: QuerySet[JobStat], length: timedelta) -> int:
    """Add the sums of `rows` to their parts; the number of rows. One statement."""
    groups = rows.values("begins_at").annotate(rows=Count("pk"), **AGGREGATES)
    total = 0
    for begins_at, number, *values in groups.values_list("begins_at", "rows", *AGGREGATES):
        parts[begin_of(begins_at, length)].add_sums(values)
        total += int(number)
    return total


def _add_times(parts: Mapping[datetime, Part], rows: QuerySet[JobStat], length: timedelta) -> None:
    for begins_at, waits, run_times in rows.values_list("begins_at", "wait_times", "run_times")[: ROWS_MAX + 1]:
        parts[begin_of(begins_at, length)].add_times(buckets(waits), buckets(run_times))
