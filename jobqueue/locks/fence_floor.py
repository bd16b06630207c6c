"""The fence floor: rows of lease locks can be deleted without their fences starting again."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.models import QuerySet

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.clock import UtcNow
from jobqueue.db.parameters import placeholder
from jobqueue.db.retry import retry_transient
from jobqueue.models import FenceFloor, LockRow
from jobqueue.validation import check_int

_ID = 1


def make_row(name: str, owner: str, token: bytes, ttl_seconds: float, *, using: str) -> None:
    """Insert the row of a lock, held under `token`; do nothing if another process has just inserted it.

    Its fence is one above that of every deleted lock. One statement reads the floor under a lock and inserts the row:
    if the floor could rise in between, the new row could get a fence that an earlier holder had.
    """
    field: Any = LockRow._meta.get_field("owner_token")
    found, connection = vendor(using), connections[using]
    names = [found.text_parameter(connection, text) for text in (name, owner)]
    values = [*names, field.get_db_prep_save(token, connection), ttl_seconds, _ID]
    if not _insert(values, using):
        _make_floor(using)
        _insert(values, using)


def _insert(values: list[Any], using: str) -> bool:
    """Whether the row exists now; False if there is no floor."""
    connection = connections[using]
    # Only a test case is in a transaction here.
    block = transaction.atomic(using=using) if connection.in_atomic_block else nullcontext()
    try:
        with block, connection.cursor() as cursor:
            cursor.execute(_insert_sql([placeholder(value) for value in values], using), values)
            return bool(cursor.rowcount)
    except IntegrityError:
        return True


def _insert_sql(places: list[str], using: str) -> str:
    name, owner, token, seconds, floor = places
    found, quote = vendor(using), connections[using].ops.quote_name
    columns = ", ".join(map(quote, ["lock_key", "fence", "owner", "owner_token", "expires_at"]))
    ends = found.now_plus_sql % {"expressions": seconds}
    return (
        f"INSERT INTO {quote(LockRow._meta.db_table)} ({columns}) SELECT {name}, fence + 1, {owner}, {token}, {ends} "
        f"FROM {quote(FenceFloor._meta.db_table)} WHERE id = {floor} {found.for_share_sql}"
    )


def sweep(limit: int = 1000, *, using: str | None = None) -> int:
    """Delete up to `limit` ended locks, the oldest first, in one transaction; the number of deleted rows.

    Any number of processes may run it. It skips rows that others have locked.
    """
    check_int(limit, "limit", 1, 10_000)
    alias = alias_of(using)
    return retry_transient("housekeeping", lambda: _sweep(limit, alias), using=alias)


def ended(using: str) -> QuerySet[LockRow]:
    """Lease locks that have ended, the oldest first."""
    return LockRow.objects.using(using).filter(expires_at__lt=UtcNow()).order_by("expires_at")


def _sweep(limit: int, using: str) -> int:
    if not ended(using).exists():
        # The usual case: no transaction, and no lock on the floor.
        return 0
    found = vendor(using)
    with found.transaction(connections[using]):
        # Lock the floor first, in the same order as make_row().
        floor = FenceFloor.objects.using(using).filter(pk=_ID)
        if not floor.select_for_update():
            _make_floor(using)
            floor.select_for_update().get()
        rows = found.lock_rows(found.force_index(ended(using), "ix_lock_expiry")).values_list("pk", "fence")[:limit]
        fences = dict(rows)
        if not fences:
            return 0
        floor.filter(fence__lt=max(fences.values())).update(fence=max(fences.values()))
        # Filtered again: not every database kept these rows locked since they were read.
        gone, _ = ended(using).filter(pk__in=list(fences)).order_by().delete()
    return gone


def _make_floor(using: str) -> None:
    try:
        with transaction.atomic(using=using):
            FenceFloor(id=_ID, fence=0).save(using=using, force_insert=True)
    except IntegrityError:
        pass
