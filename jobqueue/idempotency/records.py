"""The rows that remember what was done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.fields import Encoded
from jobqueue.db.lock_dialect import UniqueInsert
from jobqueue.db.parameters import placeholder
from jobqueue.exceptions import DatabaseBusy, InProgress
from jobqueue.idempotency.keys import StoredKey
from jobqueue.locks.deadline import Deadline
from jobqueue.models import IdempotencyRecord

T = TypeVar("T")

_ROUNDS = 8


class Lapsed(Exception):
    """The record that this transaction waited for has run out: roll back, which gives up its locks, and begin again."""


def begin(
    key: StoredKey, deadline: Deadline, *, ttl_seconds: float, fingerprint: bytes | None, using: str, may_redo: bool
) -> IdempotencyRecord | None:
    """None: the record is ours, in this transaction. Else the one that somebody has committed before.

    Raises InProgress when somebody else's transaction has the key and does not end in time; this one goes on. Raises
    Lapsed only if the transaction may be redone.
    """
    conflicts, misses, waited = 0, 0, False
    while conflicts < _ROUNDS:
        # The usual repeat ends here: no lock, no write.
        found = _newest(key, deadline, using) if conflicts or waited else next(iter(_read(key, using)), None)
        if found is None:
            if _insert(key, ttl_seconds, deadline.left_seconds() or 0.0, fingerprint, using):
                return None
            conflicts += 1
        elif found.is_alive:  # type: ignore[attr-defined]
            return found
        elif conflicts and may_redo:
            raise Lapsed
        elif _renew(found, ttl_seconds, fingerprint, using, wait_for=deadline if conflicts or waited else None):
            return None
        else:
            # Somebody renews it just now, or has done so: look again, the first time at once.
            pause = deadline.pause_seconds() if misses else 0.0
            if pause is None:
                raise in_progress(key)
            time.sleep(pause)
            misses += 1
            # A caller's snapshot may show it as expired for ever: wait for whoever has it, and look past the snapshot.
            waited = not may_redo and bool(deadline.left_seconds())
    raise DatabaseBusy(f"the record of {key.label!r} came and went {_ROUNDS} times. Nothing was written; try again.")


def _renew(
    expired: IdempotencyRecord,
    ttl_seconds: float,
    fingerprint: bytes | None,
    using: str,
    wait_for: Deadline | None,
) -> bool:
    """Whether the expired record is ours now; False if somebody else has it.

    After a conflict each of those who waited may hold a shared lock on it, and to skip what others have locked would
    be to skip it for ever: then whoever is left when the deadlock is resolved gets it.
    """
    rows = IdempotencyRecord.objects.using(using).filter(pk=expired.pk, expires_at__lte=UtcNow())
    found = vendor(using)
    locked: list[Any] | None
    if wait_for is None or not found.shared_lock_sql:
        locked = list(found.lock_rows(rows).values_list("pk"))
    else:
        locked = _within(wait_for, using, lambda: list(rows.select_for_update().values_list("pk")))
    if not locked:
        return False
    anew: dict[str, Any] = {"fingerprint": fingerprint, "result": None, "created_at": UtcNow()}
    return bool(vendor(using).update_by_key(rows, {**anew, "expires_at": UtcNowPlus(ttl_seconds)}))


def complete(key: StoredKey, result: Encoded | None, *, using: str) -> None:
    """Keep the result."""
    IdempotencyRecord.objects.using(using).filter(digest=key.digest).update(result=result)


def _insert(key: StoredKey, ttl_seconds: float, timeout_seconds: float, fingerprint: bytes | None, using: str) -> bool:
    """Whether the key was free; waits for a transaction that has it."""
    connection = connections[using]
    quote = connection.ops.quote_name
    expires = vendor(using).now_plus_sql % {"expressions": "%s"}
    fields: Any = IdempotencyRecord._meta
    values = [key.digest, key.label, fingerprint]
    names = ("digest", "label", "fingerprint")
    row = [fields.get_field(n).get_db_prep_save(v, connection) for n, v in zip(names, values, strict=True)]
    table = quote(IdempotencyRecord._meta.db_table)
    sql = f"INSERT INTO {table} ({', '.join(names)}, expires_at) VALUES ({', '.join(map(placeholder, row))}, {expires})"
    insert = UniqueInsert(table, "digest", row[0], sql, [*row, float(ttl_seconds)])
    found = vendor(using).locks.insert_once(connection, insert, timeout_seconds)
    if found is None:
        raise in_progress(key)
    return found


def in_progress(key: StoredKey) -> InProgress:
    """The error for a key that somebody else's transaction has."""
    return InProgress(
        f"{key.label!r} is being worked on by another transaction right now. Nothing was written, and this "
        "transaction can go on; ask again later, or wait longer with timeout_seconds."
    )


def _newest(key: StoredKey, deadline: Deadline, using: str) -> IdempotencyRecord | None:
    """Also one that this transaction's snapshot does not show. Raises InProgress if somebody has it for too long."""
    found = _within(deadline, using, lambda: _read(key, using, vendor(using).shared_lock_sql))
    if found is None:
        raise in_progress(key)
    return next(iter(found), None)


def _within(deadline: Deadline, using: str, work: Callable[[], list[T]]) -> list[T] | None:
    return vendor(using).locks.run_within(connections[using], deadline.left_seconds() or 0.0, work)


def _read(key: StoredKey, using: str, suffix: str = "") -> list[IdempotencyRecord]:
    """The committed record, with is_alive."""
    found, connection = vendor(using), connections[using]
    table = connection.ops.quote_name(IdempotencyRecord._meta.db_table)
    sql = f"SELECT *, CASE WHEN expires_at > {found.now_sql} THEN 1 ELSE 0 END AS is_alive FROM {table} "
    digest = found.binary_parameter(connection, key.digest)
    sql += f"WHERE digest = {placeholder(digest)} {suffix}"
    return list(IdempotencyRecord.objects.using(using).raw(sql, [digest]))
