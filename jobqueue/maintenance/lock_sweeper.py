"""Deletes lease locks that have ended and the rows of idle mutexes."""

from __future__ import annotations

import math
import time
from collections import Counter
from functools import partial

from django.db import connections
from django.db.models import BooleanField, ExpressionWrapper, Q

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.locks.lease import ended, sweep
from jobqueue.locks.mutex_rows import MUTEX_IDLE_SECONDS
from jobqueue.models import MutexRow
from jobqueue.models.locks import MUTEX_FLOOR, add_to_floor, floor

#: rows of mutexes that one pass reads; the next pass goes on behind them
MUTEX_ROWS = 5_000
_BATCH = 200
#: the last key of a mutex that this process has read, by database
_positions: dict[str, str] = {}


def run_once(settings: Settings, *, using: str, limit: int = 1000, seconds: float = math.inf) -> Counter[str]:
    """Delete ended locks in transactions of `limit`, for about `seconds`; then some idle mutexes."""
    freed, end = 0, time.monotonic() + seconds
    # Locks that end during the pass are left for the next one: the number of batches is fixed at the start.
    for _ in range(-(-count_ended(using=using) // limit)):
        gone = sweep(limit, using=using)
        freed += gone
        if gone < limit or time.monotonic() >= end:
            break
    return Counter(locks_freed=freed, mutexes_deleted=_sweep_mutexes(using))


def count_ended(*, using: str) -> int:
    """The number of lease locks that have ended and still have a row."""
    return ended(using).count()


def _sweep_mutexes(using: str) -> int:
    """Delete those of the next MUTEX_ROWS rows that were idle for MUTEX_IDLE_SECONDS, unless a transaction holds them.

    In order of the key: the time of the last use has no index, because every holder would have to write to it.
    """
    after = _positions.get(using, "")
    rows = MutexRow.objects.using(using).filter(pk__gt=after).order_by("pk")
    idle = ExpressionWrapper(_idle(), output_field=BooleanField())
    seen = list(rows.annotate(is_idle=idle).values_list("pk", "is_idle")[:MUTEX_ROWS])
    _positions[using] = seen[-1][0] if len(seen) == MUTEX_ROWS else ""
    keys = [key for key, is_idle in seen if is_idle]
    batches = [keys[first : first + _BATCH] for first in range(0, len(keys), _BATCH)]
    return sum(
        retry_transient("housekeeping", partial(_delete_mutexes, batch, using), using=using) for batch in batches
    )


def _idle() -> Q:
    limit = UtcNowPlus(-MUTEX_IDLE_SECONDS)
    return Q(taken_at__lt=limit) | Q(taken_at__isnull=True, created_at__lt=limit)


def _delete_mutexes(keys: list[str], using: str) -> int:
    server = vendor(using)
    with server.transaction(connections[using]):
        deletions = floor(MUTEX_FLOOR, using)
        if deletions.exists() and not server.lock_rows(deletions):
            # A transaction relies on no row being deleted until it ends; the next pass tries again.
            return 0
        rows = MutexRow.objects.using(using).filter(_idle())
        locked = list(server.lock_rows(rows.filter(pk__in=keys)).values_list("pk", flat=True))
        if locked:
            add_to_floor(MUTEX_FLOOR, 1, using)
        # One DELETE per key: led by a scan, a DELETE would wait for rows that others have locked.
        return sum(rows.filter(pk=key).delete_only()[0] for key in locked)
