"""Deleting the rows of mutexes that nobody has taken for long."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import BooleanField, ExpressionWrapper, Q

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.mutex_floor import MUTEX_FLOOR, MUTEX_IDLE_SECONDS, raise_mutex_floor
from jobqueue.db.retry import retry_transient
from jobqueue.models import FenceFloor, MutexRow

#: rows looked at by one call of sweep_idle(); the next call goes on behind them
LOOK_ROWS = 5_000
_BATCH = 200
#: the last key that this process has looked at, by database
_positions: dict[str, str] = {}


def sweep_idle(*, using: str) -> int:
    """Delete those among the next LOOK_ROWS rows that have been idle for MUTEX_IDLE_SECONDS; how many.

    In order of the key, because the time of the last use has no index: every holder would have to write it. A row that
    somebody holds is left.
    """
    after = _positions.get(using, "")
    rows = MutexRow.objects.using(using).filter(pk__gt=after).order_by("pk")
    idle = ExpressionWrapper(_idle(), output_field=BooleanField())
    seen = list(rows.annotate(is_idle=idle).values_list("pk", "is_idle")[:LOOK_ROWS])
    _positions[using] = seen[-1][0] if len(seen) == LOOK_ROWS else ""
    keys = [key for key, is_idle in seen if is_idle]
    gone = 0
    for first in range(0, len(keys), _BATCH):
        batch = keys[first : first + _BATCH]
        gone += retry_transient(lambda batch=batch: _delete(batch, using), using=using)  # type: ignore[misc]
    return gone


def _idle() -> Q:
    limit = UtcNowPlus(-MUTEX_IDLE_SECONDS)
    return Q(taken_at__lt=limit) | Q(taken_at__isnull=True, created_at__lt=limit)


def _delete(keys: list[str], using: str) -> int:
    found = vendor(using)
    with found.transaction(connections[using]):
        floor: Any = FenceFloor.objects.using(using).filter(pk=MUTEX_FLOOR)
        if floor.exists() and not found.lock_rows(floor):
            # A transaction relies on nothing being deleted until it ends; the next call tries again.
            return 0
        rows: Any = MutexRow.objects.using(using).filter(_idle())
        locked = list(found.lock_rows(rows.filter(pk__in=keys)).values_list("pk", flat=True))
        if locked:
            raise_mutex_floor(using)
        # By one key each: led by a scan, a DELETE would wait for rows that others have locked.
        return sum(rows.filter(pk=key).delete_only()[0] for key in locked)
