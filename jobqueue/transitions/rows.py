"""The rows a transition writes."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models.lookups import Exact

from jobqueue.db.unindexed import Unindexed
from jobqueue.models import Job
from jobqueue.models.querysets import JobQuerySet


def in_state(ids: Iterable[int], status: int, *, using: str) -> JobQuerySet:
    """The jobs of these ids that are in `status`: found by their key alone, so that writing them locks only them."""
    by_key: JobQuerySet = Job.objects.using(using).filter(pk__in=list(ids))
    return by_key.filter(Exact(Unindexed("status"), int(status)))
