"""What the deletion of mutex rows leaves behind, for transactions whose reads are older than it."""

from __future__ import annotations

from django.db import IntegrityError, connections, transaction

#: rows of mutexes that nobody has taken for so long are deleted
MUTEX_IDLE_SECONDS = 86_400
#: the row of job_lock_floor that is written whenever rows of mutexes are deleted
MUTEX_FLOOR = 2


def raise_mutex_floor(using: str) -> None:
    """Write, in the present transaction, that rows of mutexes are deleted."""
    if _add_one(using):
        return
    try:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute("INSERT INTO job_lock_floor (id, fence) VALUES (%s, 1)", [MUTEX_FLOOR])
    except IntegrityError:
        _add_one(using)


def _add_one(using: str) -> bool:
    with transaction.mark_for_rollback_on_error(using=using), connections[using].cursor() as cursor:
        cursor.execute("UPDATE job_lock_floor SET fence = fence + 1 WHERE id = %s", [MUTEX_FLOOR])
        return bool(cursor.rowcount)
