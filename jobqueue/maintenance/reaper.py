"""Ends lapsed leases and marks workers that stopped sending heartbeats."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from functools import cache

from jobqueue.conf import Settings
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.maintenance import worker_rows
from jobqueue.models import Job
from jobqueue.transitions import Reaped, reap


def run_once(settings: Settings, *, using: str, limit: int = 1000) -> Counter[str]:
    """End lapsed leases and mark silent workers, once."""
    silent = worker_rows.retire_silent(settings.worker_silent_seconds, using=using)
    return Counter({**asdict(end_lapsed(using=using, limit=limit)), "workers_dead": silent})


def end_lapsed(*, using: str, limit: int = 1000) -> Reaped:
    """End as many batches of `limit` as there are lapsed leases, each in its own transaction."""
    ended = Reaped()
    # Every worker asks this every second, and the answer is nearly always none.
    lapsed = count_lapsed(using=using) if _first_lapsed(using).rows() else 0
    # Leases that expire during the pass are left for the next one: the number of batches is fixed at the start.
    for _ in range(-(-lapsed // limit)):
        found = reap(limit, using=using)
        ended += found
        if found.total < limit:
            break
    return ended


def end_batch(*, using: str, limit: int = 1000) -> Reaped:
    """End up to `limit` lapsed leases in one transaction, for callers with other work between the batches."""
    return reap(limit, using=using) if _first_lapsed(using).rows() else Reaped()


@cache
def _first_lapsed(using: str) -> Prepared:
    return prepare_rows(Job.objects.using(using).lapsed().values_list("pk")[:1])


def count_lapsed(*, using: str) -> int:
    return Job.objects.using(using).lapsed().count()
