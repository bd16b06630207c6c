"""Deletes lease locks that have ended, released or by the death of their holders, and rows of idle mutexes."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.conf import Settings
from jobqueue.locks.fence_floor import ended, sweep
from jobqueue.locks.idle_mutexes import sweep_idle

#: how often a worker does it
INTERVAL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sweeping:
    """What one pass did."""

    locks_freed: int
    mutexes_deleted: int = 0


def run_once(settings: Settings, *, using: str, limit: int = 1000) -> Sweeping:
    """As many batches of `limit` as there are locks that have ended; each batch is its own transaction."""
    freed = 0
    # Locks that end while this runs are left for the next pass: its work is bounded by what was there.
    for _ in range(-(-count_ended(using=using) // limit)):
        gone = sweep(limit, using=using)
        freed += gone
        if gone < limit:
            break
    return Sweeping(freed, sweep_idle(using=using))


def count_ended(*, using: str) -> int:
    """How many have ended and are still there."""
    return ended(using).count()
