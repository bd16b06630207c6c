"""Ends leases that ran out and marks workers that fell silent."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue import workers
from jobqueue.conf import Settings
from jobqueue.models import Job
from jobqueue.transitions import reap


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
    """As many batches of `limit` as there are lapsed leases; each batch is its own transaction."""
    requeued = dead = canceled = 0
    # Jobs that lapse while this runs are left for the next pass: the work of one pass is bounded by what was there.
    for _ in range(-(-count_expired(using=using) // limit)):
        found = reap(limit, using=using)
        requeued, dead, canceled = requeued + found.requeued, dead + found.dead, canceled + found.canceled
        if found.total < limit:
            break
    silent = workers.retire_silent(settings.worker_silent_seconds, using=using)
    return Reaping(requeued, dead, canceled, silent)


def count_expired(*, using: str) -> int:
    """How many leases have run out."""
    return Job.objects.using(using).expired().count()
