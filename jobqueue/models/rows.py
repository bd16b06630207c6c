"""The rows a transition writes."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import BigIntegerField, F, Value
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact

from jobqueue.db.expressions import AnyOf, Keys, Unindexed
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet


def in_state(ids: Iterable[int], status: int, *, using: str, queue: str | None = None) -> JobQuerySet:
    """The jobs of these ids that are in `status` (and `queue`): found by their key alone.

    So writing them locks only them; and MariaDB does not miss one that others move within another index meanwhile.
    """
    by_key: JobQuerySet = Job.objects.using(using).filter(pk__in=list(ids))
    rows: JobQuerySet = by_key.filter(Exact(Unindexed("status"), int(status)))
    return rows if queue is None else rows.filter(Exact(Coalesce("queue", Value("")), queue))


def any_in_state(status: int, *, using: str) -> JobQuerySet:
    """in_state() for a prepared statement, whose runs bring `ids`."""
    by_key: JobQuerySet = Job.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField())))
    return by_key.filter(Exact(Unindexed("status"), int(status)))
