"""Ends leases that ran out and marks workers that fell silent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from jobqueue.conf import Settings
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.maintenance import worker_rows
from jobqueue.models import Job
from jobqueue.transitions import Reaped, reap


@dataclass(frozen=True, slots=True)
class Reaping:
    """What one pass did."""

    requeued: int
    dead: int
    canceled: int
    workers_dead: int

    @property
    def total(self) -> int:
        """Leases ended."""
        return self.requeued + self.dead + self.canceled


def run_once(settings: Settings, *, using: str, limit: int = 1000) -> Reaping:
    """Both, once."""
    silent = worker_rows.retire_silent(settings.worker_silent_seconds, using=using)
    return replace(end_lapsed(using=using, limit=limit), workers_dead=silent)


def end_lapsed(*, using: str, limit: int = 1000) -> Reaping:
    """As many batches of `limit` as there are lapsed leases; each batch is its own transaction."""
    requeued = dead = canceled = 0
    # Asked every second by every worker, and hardly ever with another answer than none.
    expired = count_expired(using=using) if _first_expired(using).rows() else 0
    # Jobs that lapse while this runs are left for the next pass: the work of one pass is bounded by what was there.
    for _ in range(-(-expired // limit)):
        found = reap(limit, using=using)
        requeued, dead, canceled = requeued + found.requeued, dead + found.dead, canceled + found.canceled
        if found.total < limit:
            break
    return Reaping(requeued, dead, canceled, workers_dead=0)


def end_batch(*, using: str, limit: int = 1000) -> Reaped:
    """Up to `limit` of them, in one transaction: whoever calls it again has other things to do between the batches."""
    return reap(limit, using=using) if _first_expired(using).rows() else Reaped()


@cache
def _first_expired(using: str) -> Prepared:
    return prepare_rows(Job.objects.using(using).expired().values_list("pk")[:1])


def count_expired(*, using: str) -> int:
    """How many leases have run out."""
    return Job.objects.using(using).expired().count()
