"""Deleting free locks without letting their fences begin anew."""

from __future__ import annotations

from django.db import IntegrityError, connections, transaction
from django.db.models import QuerySet

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.models import LockFloor, LockRow
from jobqueue.names import check_int

_ID = 1


def read_floor(using: str) -> int:
    """The highest fence of any deleted lock; it cannot rise before the caller's transaction ends.

    Otherwise a lock could be made with a fence from before its own deletion.
    """
    connection = connections[using]
    quote = connection.ops.quote_name
    sql = f"SELECT fence FROM {quote(LockFloor._meta.db_table)} WHERE id = %s {vendor(using).for_share_sql}"
    for _ in range(2):
        with connection.cursor() as cursor:
            cursor.execute(sql, [_ID])
            row = cursor.fetchone()
        if row is not None:
            return int(row[0])
        _make_floor(using)
    raise AssertionError("unreachable: the floor was made")


def sweep(limit: int = 1000, *, using: str | None = None) -> int:
    """Delete up to `limit` locks that have ended, the longest ended first; how many. One bounded transaction.

    Any number may run at once. A holder is never disturbed: its row is skipped, or its end lies ahead.
    """
    check_int(limit, "limit", 1, 10_000)
    alias = using or load().database
    return retry_transient(lambda: _sweep(limit, alias), using=alias)


def ended(using: str) -> QuerySet[LockRow]:
    """Locks that nobody holds any more, the longest ended first."""
    return LockRow.objects.using(using).filter(expires_at__lt=UtcNow()).order_by("expires_at")


def _sweep(limit: int, using: str) -> int:
    if not ended(using).exists():
        # The usual case: without a transaction, and without a lock on the floor.
        return 0
    found = vendor(using)
    with found.transaction(connections[using]):
        # The floor first, as those who make a lock do.
        floor = LockFloor.objects.using(using).filter(pk=_ID)
        if not floor.select_for_update():
            _make_floor(using)
            floor.select_for_update().get()
        rows = found.lock_rows(found.force_index(ended(using), "ix_lock_expiry")).values_list("pk", "fence")[:limit]
        fences = dict(rows)
        if not fences:
            return 0
        floor.filter(fence__lt=max(fences.values())).update(fence=max(fences.values()))
        # Ended, again: not every database kept these rows locked since they were read.
        gone, _ = ended(using).filter(pk__in=list(fences)).order_by().delete()
    return gone


def _make_floor(using: str) -> None:
    try:
        with transaction.atomic(using=using):
            LockFloor(id=_ID, fence=0).save(using=using, force_insert=True)
    except IntegrityError:
        pass
