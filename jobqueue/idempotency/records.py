"""The records of once(): their keys, and how they are inserted, found, renewed after their expiry, completed."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from django.db import connections

from jobqueue.base.validation import key_text
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.fields import Encoded
from jobqueue.db.locks import UniqueInsert
from jobqueue.db.statements import placeholder
from jobqueue.exceptions import DatabaseBusy, InProgress, InvalidValue
from jobqueue.failures import storable
from jobqueue.locks.deadline import Deadline
from jobqueue.models import IdempotencyRecord

T = TypeVar("T")
Part: TypeAlias = str | bytes | int | uuid.UUID
Key: TypeAlias = Part | tuple[Part, ...]

KEY_BYTES = 65_536
_LABEL_BYTES = 255
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The SHA-256 of a key, and its beginning for people to read."""

    digest: bytes
    label: str


def stored(key: object) -> StoredKey:
    """A key is a str, bytes, int, UUID or a tuple of them, compared exactly: ("a", 1) is neither ("a", "1") nor "a1".

    Raises InvalidType, InvalidValue.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if not parts or any(part == "" or part == b"" for part in parts):
        raise InvalidValue("an idempotency key, and each of its parts, must not be empty. Nothing was written.")
    text = key_text(parts, (str, bytes, int, uuid.UUID), "an idempotency key")
    if len(text) > KEY_BYTES:
        raise InvalidValue(f"the idempotency key is longer than {KEY_BYTES} bytes. Nothing was written; hash it.")
    label = ":".join(str(part) if not isinstance(part, bytes) else part.hex() for part in parts)
    return StoredKey(hashlib.sha256(text.encode()).digest(), storable(label, _LABEL_BYTES))


class Lapsed(Exception):
    """The record that this transaction waited for has expired: roll back, which releases its locks, and begin again."""


def begin(
    key: StoredKey, deadline: Deadline, *, ttl_seconds: float, fingerprint: bytes | None, using: str, may_redo: bool
) -> IdempotencyRecord | None:
    """Insert the record in this transaction and return None; else return the committed record of an earlier block.

    Raises InProgress when another transaction has the key and does not end in time; this transaction can go on. Raises
    Lapsed only if the transaction may be redone.
    """
    conflicts, misses, waited = 0, 0, False
    while conflicts < _ROUNDS:
        # The usual repeat ends here, without a lock and a write.
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
            # Another transaction renews it now, or has done so: read again, the first time at once.
            pause = deadline.pause_seconds() if misses else 0.0
            if pause is None:
                raise in_progress(key)
            time.sleep(pause)
            misses += 1
            # The caller's snapshot may show it as expired for ever: wait for its holder, and read past the snapshot.
            waited = not may_redo and bool(deadline.left_seconds())
    raise DatabaseBusy(f"the record of {key.label!r} came and went {_ROUNDS} times. Nothing was written; try again.")


def _renew(
    expired: IdempotencyRecord,
    ttl_seconds: float,
    fingerprint: bytes | None,
    using: str,
    wait_for: Deadline | None,
) -> bool:
    """Renew the expired record for this transaction; False if another transaction has it.

    After a conflict every waiting transaction may hold a shared lock on the row, so that with SKIP LOCKED all of them
    would skip it for ever: then they wait, and the survivor of the deadlock gets it.
    """
    rows = IdempotencyRecord.objects.using(using).filter(pk=expired.pk, expires_at__lte=UtcNow())
    found = vendor(using)
    locked: Sequence[object] | None
    if wait_for is None or not found.shared_lock_sql:
        locked = list(found.lock_rows(rows).values_list("pk"))
    else:
        locked = _within(wait_for, using, lambda: list(rows.select_for_update().values_list("pk")))
    if not locked:
        return False
    fresh: dict[str, object] = {"fingerprint": fingerprint, "result": None, "created_at": UtcNow()}
    return bool(vendor(using).update_by_key(rows, {**fresh, "expires_at": UtcNowPlus(ttl_seconds)}))


def complete(key: StoredKey, result: Encoded | None, *, using: str) -> None:
    """Store the result of the block."""
    IdempotencyRecord.objects.using(using).filter(digest=key.digest).update(result=result)


def _insert(key: StoredKey, ttl_seconds: float, timeout_seconds: float, fingerprint: bytes | None, using: str) -> bool:
    """Insert the record; False if the key is not free. Waits for a transaction that has it."""
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
    """The error for a key that another transaction has."""
    return InProgress(
        f"{key.label!r} is being worked on by another transaction right now. Nothing was written, and this "
        "transaction can go on; ask again later, or wait longer with timeout_seconds."
    )


def _newest(key: StoredKey, deadline: Deadline, using: str) -> IdempotencyRecord | None:
    """_read() past this transaction's snapshot. Raises InProgress if another transaction keeps the key for too long."""
    found = _within(deadline, using, lambda: _read(key, using, vendor(using).shared_lock_sql))
    if found is None:
        raise in_progress(key)
    return next(iter(found), None)


def _within(deadline: Deadline, using: str, work: Callable[[], list[T]]) -> list[T] | None:
    return vendor(using).locks.run_within(connections[using], deadline.left_seconds() or 0.0, work)


def _read(key: StoredKey, using: str, suffix: str = "") -> list[IdempotencyRecord]:
    """The committed record with its is_alive, or an empty list."""
    found, connection = vendor(using), connections[using]
    table = connection.ops.quote_name(IdempotencyRecord._meta.db_table)
    sql = f"SELECT *, CASE WHEN expires_at > {found.now_sql} THEN 1 ELSE 0 END AS is_alive FROM {table} "
    digest = found.binary_parameter(connection, key.digest)
    sql += f"WHERE digest = {placeholder(digest)} {suffix}"
    return list(IdempotencyRecord.objects.using(using).raw(sql, [digest]))
