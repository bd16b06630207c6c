"""Deleting rows that are too old, in bounded batches."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient

#: batches of one pass: what is left waits for the next
BATCHES_MAX = 100


def delete(rows: QuerySet[Any], index: str, *, limit: int) -> int:
    """Delete `rows`, which are ordered by `index`, `limit` per transaction; rows that others have locked are left."""
    deleted = 0
    for _ in range(BATCHES_MAX):
        gone = retry_transient(lambda: _delete_some(rows, index, limit), using=rows.db)
        deleted += gone
        if gone < limit:
            break
    return deleted


def _delete_some(rows: QuerySet[Any], index: str, limit: int) -> int:
    if not rows.exists():
        # The usual case: without a transaction.
        return 0
    found = vendor(rows.db)
    with found.transaction(connections[rows.db]):
        keys = list(found.lock_rows(found.force_index(rows, index)).values_list("pk", flat=True)[:limit])
        return rows.model._base_manager.using(rows.db).filter(pk__in=keys).delete()[0] if keys else 0
