"""What ended in each part of a span of time, and how long jobs waited and ran, from the rows of statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from django.db.models import Count, Max, QuerySet, Sum

from jobqueue.db.stat_expressions import Addend, PartNumber, as_text, raw_rows
from jobqueue.db.time_limit import time_limit
from jobqueue.models import JobStat, QueueStat
from jobqueue.stats import history
from jobqueue.stats.ends import MOST, SUMS, Ends, buckets

#: how long a read may take
READ_SECONDS = 2.0
#: rows whose histograms are added up; of more of them the averages alone are told
ROWS_MAX = 10_000
#: each of SUMS and MOST over the rows of a group, in this order
AGGREGATES = {f"all_{name}": Sum(Addend(name)) for name in SUMS} | {f"all_{name}": Max(name) for name in MOST}
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
            for number, waits, run_times, in_part in histograms(rows, part, ROWS_MAX + 1):
                parts[in_part].add_times(waits, run_times, number)
    return [*parts.values()]


def empty_parts(now: datetime, length: timedelta, part: timedelta) -> dict[int, Part]:
    """The parts of read_history() without ends, by their PartNumber."""
    first, last = ((instant - _EPOCH) // part for instant in (now - length, now))
    return {number: Part(begins_at=_EPOCH + number * part) for number in range(first, last + 1)}


def rows_of(parts: Mapping[int, Part], now: datetime, using: str, queue: str | None, task: str | None) -> QuerySet[Any]:
    """The rows that begin in one of `parts`: those of queues, which are fewer, unless a task is given."""
    if task is not None:
        return rows_of_tasks(parts, now, using, queue, task)
    return _rows(QueueStat, parts, now, using, queue)


def rows_of_tasks(
    parts: Mapping[int, Part], now: datetime, using: str, queue: str | None, task: str | None
) -> QuerySet[JobStat]:
    """The rows of tasks that begin in one of `parts`."""
    rows = _rows(JobStat, parts, now, using, queue)
    return rows if task is None else rows.filter(task=task)


def _rows(model: type[Any], parts: Mapping[int, Part], now: datetime, using: str, queue: str | None) -> QuerySet[Any]:
    rows: QuerySet[Any] = model._default_manager.using(using).filter(
        span__in=JobStat.Span.values, begins_at__gte=parts[min(parts)].begins_at, begins_at__lte=now
    )
    return (rows if queue is None else rows.filter(queue=queue)).order_by()


def add_sums(parts: Mapping[int, Part], rows: QuerySet[Any], length: timedelta) -> int:
    """Add the sums of `rows` to their parts; the number of rows. One statement."""
    groups = rows.values(part=PartNumber("begins_at", length)).annotate(rows=Count("pk"), **AGGREGATES)
    total = 0
    for part, number, *values in raw_rows(groups.values_list("part", "rows", *AGGREGATES)):
        parts[part].add_sums(values)
        total += int(number)
    return total


def histograms(rows: QuerySet[Any], length: timedelta, most: int, *columns: str) -> Iterator[tuple[Any, ...]]:
    """(Number of rows, Buckets of their waits, those of their run times, PartNumber, `columns`), of up to `most` rows.

    Rows of few runs are often equal: these are counted first, and each histogram is read once.
    """
    times, known = (as_text("wait_times"), as_text("run_times")), cache(buckets)
    found = Counter(raw_rows(rows.values_list(*times, PartNumber("begins_at", length), *columns)[:most]))
    for (waits, run_times, *values), number in found.items():
        yield number, known(waits), known(run_times), *values


_DONE, _DEAD = SUMS.index("done"), SUMS.index("dead")


@dataclass(frozen=True, slots=True)
class QueueHistory:
    """What ended in one queue in the `whole` time; and the jobs that `ended` DONE or FAILED in each part of it."""

    whole: Ends
    ended: list[int]


def read_histories(
    now: datetime, length: timedelta, part: timedelta, *, using: str
) -> tuple[list[Part], dict[str, QueueHistory]]:
    """read_history() of all jobs, and by name what ended in each queue where something did.

    Two statements at most. Of too many rows, histograms are known of no part and of no queue. Raises StatementTimeout.
    """
    parts, queues = empty_parts(now, length, part), dict[str, QueueHistory]()
    first, rows, count = min(parts), rows_of(parts, now, using, None, None), 0
    with time_limit(READ_SECONDS, using=using) as limit:
        limit.check()
        groups = rows.values("queue", part=PartNumber("begins_at", part)).annotate(rows=Count("pk"), **AGGREGATES)
        for queue, place, number, *values in raw_rows(groups.values_list("queue", "part", "rows", *AGGREGATES)):
            if queue not in queues:
                queues[queue] = QueueHistory(Ends(), [0] * len(parts))
            own = queues[queue]
            own.ended[place - first] += int(values[_DONE]) + int(values[_DEAD])
            own.whole.add_sums(values)
            parts[place].add_sums(values)
            count += int(number)
        limit.check()
        wholes: list[Ends] = [*parts.values(), *(own.whole for own in queues.values())]
        if count > history.ROWS_MAX:
            for one in wholes:
                one.waits = one.run_times = None
            return [*parts.values()], queues
        found = histograms(rows, part, history.ROWS_MAX + 1, "queue") if count else ()
        for number, waits, run_times, place, queue in found:
            parts[place].add_times(waits, run_times, number)
            # Rows may have come since the sums were read.
            if queue in queues:
                queues[queue].whole.add_times(waits, run_times, number)
    return [*parts.values()], queues
