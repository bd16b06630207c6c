"""Which rows a claim may take, and in which order. Builds queries and reads; takes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import BooleanField, ExpressionWrapper, Min, Q, Subquery

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.expressions import Slot, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.statements import LooseScan
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet

INDEX = "ix_pick"
#: the queue in which `jobs bench` measures: '*' does not mean it, so that no worker takes its jobs by accident
BENCH_QUEUE = "jobqueue.bench"
NAMES_MAX = 2**31 - 1
READY = Unestimated(Job.Status.READY)
#: slots of the statements below
QUEUE = UnestimatedSlot("queue", NameField())
LEVEL = Slot("level", Job._meta.get_field("priority"))
#: between two looks of a process for jobs that have waited longer than the STARVE_SECONDS of their queue
AGED_LOOK_SECONDS = 1.0
_next_aged_look: dict[tuple[str, str], float] = {}


def due(queue: Any, priority: Any, *, using: str) -> JobQuerySet:
    """The due jobs of one queue and one priority level, in the order they are taken.

    Equality on every column of ix_pick before run_at, so the range holds only rows that may be taken, in index order,
    and LIMIT n reads and locks n of them. ORDER BY priority DESC would sort, and so lock, the whole backlog.
    """
    rows = Job.objects.using(using).filter(queue=queue, status=READY, gate=0, priority=priority, run_at__lte=UtcNow())
    return vendor(using).force_index(rows.order_by("run_at", "id"), INDEX)


class Head(NamedTuple):
    """The highest priority of the waiting jobs of a queue."""

    queue: str
    level: int | None  # None: not looked up, but a job was committed there a moment ago
    all_due: bool  # the last job of this level is due, so all are; False: perhaps none is


def top_due(queue: Any, *, using: str) -> JobQuerySet:
    """The due jobs of the highest priority that waits in `queue`: none if all jobs of that priority are delayed."""
    return due(queue, Subquery(_last(waiting(using), using).values("priority")[:1]), using=using)


def heads(queues: Sequence[str], *, using: str) -> list[Head]:
    """The heads of those `queues` in which jobs wait, due or not: one index seek per queue, one statement for 100."""
    return list(map(Head._make, _top_level(using).rows_of_each([{"queue": queue} for queue in queues])))


def due_levels(queue: str, *, using: str, surely: int | None = None, head: Head | None = None) -> Iterator[int]:
    """The priorities of `queue` that have due jobs, highest first; two index seeks per level, or one if all are due.

    Levels that hold only delayed or gated jobs are skipped without a lock. `surely` is a level that is assumed to have
    due jobs, because the last claim took a full batch from it. `head` is what heads() returned a moment ago.
    """
    found: Sequence[tuple[Any, ...]] = (
        [head] if head and head.level is not None else _top_level(using).rows(queue=queue)
    )
    while found:
        ((_, level, all_due),) = found
        if all_due or level == surely or _any_due(using).rows(queue=queue, level=level):
            yield level
        found = _level_below(using).rows(queue=queue, level=level)


@cache
def _top_level(using: str) -> Prepared:
    return highest(waiting(using), using)


@cache
def _level_below(using: str) -> Prepared:
    return highest(waiting(using).filter(priority__lt=LEVEL), using)


@cache
def _any_due(using: str) -> Prepared:
    return prepare_rows(due(QUEUE, LEVEL, using=using).values_list("pk")[:1])


def waiting(using: str) -> JobQuerySet:
    """The waiting jobs of the slot QUEUE, due or not."""
    return Job.objects.using(using).filter(queue=QUEUE, status=READY, gate=0)


def highest(rows: JobQuerySet, using: str) -> Prepared:
    """The Head of `rows`: the last entry of the index."""
    all_due = ExpressionWrapper(Q(run_at__lte=UtcNow()), BooleanField())
    found = _last(rows, using).annotate(all_due=all_due)
    return prepare_rows(found.values_list("queue", "priority", "all_due")[:1])


def _last(rows: JobQuerySet, using: str) -> JobQuerySet:
    """In the reverse order of all columns of the index; else the database sorts."""
    return vendor(using).force_index(rows.order_by("-priority", "-run_at", "-id"), INDEX)


def queue_names(*, using: str, limit: int = NAMES_MAX, after: str | None = None) -> list[str]:
    """The first `limit` queue names of the table in byte order, also those that only plain SQL used.

    `after`: only names behind this one, as the last one that was read. One statement, with one index seek per name.
    """
    connection = connections[using]
    table, column = map(connection.ops.quote_name, (Job._meta.db_table, "queue"))
    scan = LooseScan(table, [column], INDEX, after=after is not None)
    with connection.cursor() as cursor:
        cursor.execute(vendor(using).loose_scan_sql(scan), [limit] if after is None else [after, limit])
        return [str(name) for (name,) in cursor.fetchall()]


def waiting_names(*, using: str) -> list[str]:
    """The names of the queues in which jobs wait, due or not, in no order: two index seeks per name of the table.

    A name of which only ended jobs are left is not among them.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        scan = LooseScan(
            connection.ops.quote_name(Job._meta.db_table),
            ["queue"],
            INDEX,
            where=[f"status = {vendor(using).unestimated_sql % Job.Status.READY}", "gate = 0"],
            order=["priority", "run_at", "id"],
        )
        cursor.execute(vendor(using).loose_scan_sql(scan))
        return [str(name) for (name,) in cursor.fetchall()]


def aged_look_is_due(queue: str, *, using: str) -> bool:
    """Whether the queue has STARVE_SECONDS and this process last looked more than a second ago."""
    return _starve_seconds(queue) is not None and time.monotonic() >= _next_aged_look.get((using, queue), 0.0)


def aged_levels(queue: str, *, using: str) -> Iterator[tuple[int, JobQuerySet]]:
    """(priority, its jobs that have been due for longer than STARVE_SECONDS, oldest first), lowest priority first.

    Yields nothing without that setting, or if this process looked less than a second ago. Two non-locking index seeks
    per priority level.
    """
    seconds = _starve_seconds(queue)
    if seconds is None or not aged_look_is_due(queue, using=using):
        return
    _next_aged_look[using, queue] = time.monotonic() + AGED_LOOK_SECONDS
    waiting = Job.objects.using(using).filter(queue=Unestimated(queue), status=READY, gate=0)
    waiting = vendor(using).force_index(waiting, INDEX)
    level = waiting.aggregate(low=Min("priority"))["low"]
    while level is not None:
        rows = due(Unestimated(queue), level, using=using).filter(run_at__lte=UtcNowPlus(-seconds))
        if rows.values("pk")[:1]:
            yield level, rows
        level = waiting.filter(priority__gt=level).aggregate(low=Min("priority"))["low"]


def _starve_seconds(queue: str) -> float | None:
    own = load().queues.get(queue)
    return own.starve_seconds if own else None
