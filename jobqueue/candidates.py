"""Which rows a claim may take, and in which order. Builds queries; takes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Max

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.models import Job
from jobqueue.models.querysets import JobQuerySet

INDEX = "ix_pick"


def due(queue: str, priority: int, *, using: str) -> JobQuerySet:
    """The due jobs of one queue and one priority level, in the order they are taken.

    Equality on every column of ix_pick before run_at: the range holds only rows that may be taken, in index order,
    so LIMIT n reads and locks n of them. A textbook ORDER BY priority DESC sorts, and so locks, the whole backlog.
    """
    rows = Job.objects.using(using).filter(
        queue=queue, status=Job.Status.READY, gate=0, priority=priority, run_at__lte=UtcNow()
    )
    return vendor(using).force_index(rows.order_by("run_at", "id"), INDEX)


def due_levels(queue: str, *, using: str) -> Iterator[int]:
    """The priorities of `queue` that have due jobs, highest first; two non-locking index seeks per level.

    Levels that hold only delayed or gated jobs are passed over without a lock.
    """
    waiting = Job.objects.using(using).filter(queue=queue, status=Job.Status.READY, gate=0)
    waiting = vendor(using).force_index(waiting, INDEX)
    level = waiting.aggregate(top=Max("priority"))["top"]
    while level is not None:
        if due(queue, level, using=using).values("pk")[:1]:
            yield level
        level = waiting.filter(priority__lt=level).aggregate(top=Max("priority"))["top"]


def queue_names(*, using: str) -> Iterator[str]:
    """Every queue name in the table, in byte order: one index seek per name, also for names only plain SQL used."""
    rows = vendor(using).force_index(Job.objects.using(using).order_by("queue"), INDEX)
    name = rows.values_list("queue", flat=True).first()
    while name is not None:
        yield name
        name = rows.filter(queue__gt=name).values_list("queue", flat=True).first()


def due_queues(*, using: str) -> Iterator[str]:
    """The names of the queues with waiting jobs, due or not."""
    for name in queue_names(using=using):
        waiting = Job.objects.using(using).filter(queue=name, status=Job.Status.READY, gate=0)
        # In index order, or PostgreSQL may think a look at the whole table is as good.
        if vendor(using).force_index(waiting.order_by("priority", "run_at", "id"), INDEX).values("pk")[:1]:
            yield name
