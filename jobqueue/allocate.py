"""Hand out rows of any table, each exactly once: serial numbers, vouchers, seats, phone numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from django.db import Error, IntegrityError, connections, models

from jobqueue.base.validation import check_int, check_key
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.querysets import M, check_changes, check_lock_options, check_queryset
from jobqueue.db.retry import retry_looked_up, retry_transient
from jobqueue.db.statements import placeholder
from jobqueue.exceptions import DatabaseBusy, InvalidValue, LockNotAcquired
from jobqueue.failures import storable
from jobqueue.models import IdempotencyRecord

N_MAX = 10_000
_ROUNDS = 8
#: rows of one statement that looks for locks
_KEYS = 1000
#: how long answers are kept if no time is set: a thousand years
_FOR_EVER_SECONDS = 31_556_952_000.0


class _Short(Exception):
    """Fewer than n rows were free, but others may only be locked: look again, waiting."""


class _Overtaken(Exception):
    """Another transaction committed the same request or changed the same rows first: look again."""


@dataclass(frozen=True, slots=True)
class _Request(Generic[M]):
    queryset: models.QuerySet[M]
    n: int
    changes: Mapping[str, object]
    key: bytes | None
    using: str
    skip_locked: bool
    nowait: bool


def take(
    queryset: models.QuerySet[M],
    n: int = 1,
    *,
    changes: Mapping[str, object],
    request_id: str | bytes | None = None,
    skip_locked: bool = False,
    nowait: bool = False,
) -> list[M]:
    """Up to `n` (1-10000) rows of `queryset`, stamped with `changes`; in its order (else by key), [] when none.

    No row goes to two callers: `changes` must take it out of the queryset, and the stamp is an UPDATE under the
    queryset's own conditions. Rows that others have locked are skipped, so the order holds within one call, not
    across concurrent ones. Before it answers with fewer it looks again and waits for locked rows: nothing that a
    rollback gives back is reported as sold out. With `skip_locked` it answers with fewer at once, with `nowait` it
    raises LockNotAcquired instead of waiting. An index on filter and order keeps the search short.

    With `request_id` (1-64 bytes, per table) a repeated call gives the same rows again as they are now, whatever its
    other arguments; a request that got [] is not kept. Part of the caller's transaction on the queryset's database,
    else its own. Raises InvalidType, InvalidValue; DatabaseBusy; OutcomeUnknown, with request_id only if the connection
    broke twice.
    """
    check_lock_options(skip_locked, nowait)
    key = None if request_id is None else check_key(request_id, "request_id")
    rows = check_queryset(queryset)
    count, stamp = check_int(n, "n", 1, N_MAX), check_changes(rows.model, changes)
    request = _Request(rows, count, stamp, key, rows.db, skip_locked, nowait)
    if key is not None:
        return retry_looked_up("take", lambda: _take(request), using=rows.db)
    return retry_transient("take", lambda: _take(request), using=rows.db, repeatable=False)


def _take(request: _Request[M]) -> list[M]:
    # Only outside a transaction is a plain read fresh. Stock is checked before the record of the request: in the other
    # order, a duplicate request could take the last row in between, and this one would report "sold out".
    alone = not in_callers_transaction(connections[request.using])
    sold_out = alone and not request.queryset.exists()
    read, skip_locked = _recorded, connections[request.using].features.has_select_for_update_skip_locked
    for _ in range(_ROUNDS):
        same = None if request.key is None else read(request.queryset.model, request.key, using=request.using)
        if same is not None or sold_out:
            return same or []
        try:
            return _attempt(request, skip_locked)
        except _Short:
            # Rolled back first: a transaction that waits holds nothing, and all lock in the same order.
            skip_locked = False
        except _Overtaken:
            read = _recorded if alone else _recorded_meanwhile
    raise DatabaseBusy(
        f"other transactions were faster {_ROUNDS} times, or committed what this one's snapshot cannot see. "
        "Nothing was handed out; redo the whole transaction."
    )


def _attempt(request: _Request[M], skip_locked: bool) -> list[M]:
    with vendor(request.using).transaction(connections[request.using]):
        if request.key is None:
            return _stamp(request, skip_locked)
        # The record comes first, so that a duplicate request waits for it before it has locked any row.
        record = _begin(request.queryset.model, request.key, using=request.using)
        rows = _stamp(request, skip_locked)
        _complete(record, rows, using=request.using)
        return rows


def _stamp(request: _Request[M], skip_locked: bool) -> list[M]:
    queryset = request.queryset
    rows = vendor(request.using).locks.lock_first(queryset, request.n, skip_locked=skip_locked)
    if skip_locked and not request.skip_locked and len(rows) < request.n:
        if request.nowait and _any_locked(queryset.exclude(pk__in=[row.pk for row in rows]), request.using):
            raise LockNotAcquired(
                f"{len(rows)} of {request.n} rows are free, and other transactions have locked more, which may become "
                "free again. Nothing was handed out; try again later, or let the call wait (nowait=False)."
            )
        if not request.nowait:
            raise _Short
    if rows:
        rows = _each_once(rows, request.n)
        mine = queryset.order_by().filter(pk__in=[row.pk for row in rows])
        if vendor(request.using).locks.update_locked(mine, request.changes) != len(rows):
            raise _Overtaken
        if mine.exists():
            raise InvalidValue(
                f"with the changes {sorted(request.changes)} a row still matches the queryset and would be handed out "
                "again. Nothing was written; filter on a column that the changes set."
            )
        _show(queryset.model, rows, request.changes, using=request.using)
    return rows


def _any_locked(rows: models.QuerySet[M], using: str) -> bool:
    """True if another transaction has locked one of `rows`. Raises _Overtaken if one of them has just become free.

    An older snapshot shows rows that others have taken since: only a read that locks tells these from locked ones.
    """
    keys = list(rows.order_by("pk").values_list("pk", flat=True))
    locks = vendor(using).locks
    for begin in range(0, len(keys), _KEYS):
        some = vendor(using).force_index(rows.order_by().filter(pk__in=keys[begin : begin + _KEYS]), "PRIMARY")
        try:
            if list(locks.lock_own(some, skip_locked=False, nowait=True).values_list("pk", flat=True)):
                raise _Overtaken
        except Error as error:
            if not locks.is_lock_timeout(error):
                raise
            return True
    return False


def _each_once(rows: list[M], n: int) -> list[M]:
    """Remove duplicates: a join returns a row once for each row that it is joined with."""
    found = list({row.pk: row for row in rows}.values())
    if len(found) < len(rows) and len(found) < n:
        raise InvalidValue(
            "the queryset gives a row more than once, because it joins a table with several rows for it. Nothing was "
            "written; filter with Exists() instead."
        )
    return found


def _show(model: type[M], rows: Sequence[M], changes: Mapping[str, object], *, using: str) -> None:
    """Put the written changes on the instances; what the database computed is read back."""
    computed = [name for name, value in changes.items() if hasattr(value, "resolve_expression")]
    fresh = {}
    if computed:
        fresh = model._base_manager.using(using).only(*computed).in_bulk([row.pk for row in rows])
    for name, value in changes.items():
        field: Any = model._meta.get_field(name)
        for row in rows:
            if name in computed:
                setattr(row, field.attname, getattr(fresh[row.pk], field.attname))
            elif not field.is_relation:
                setattr(row, name, field.to_python(value))
            else:
                setattr(row, name if isinstance(value, models.Model) else field.attname, value)


def _recorded(model: type[M], request_id: bytes, *, using: str) -> list[M] | None:
    """The rows given to `request_id` as they are now, in their order; None if this snapshot shows no answer."""
    record = IdempotencyRecord.objects.using(using).filter(digest=_digest(model, request_id)).first()
    return None if record is None else _read(model, record, model._base_manager.using(using).all())


def _digest(model: type[M], request_id: bytes) -> bytes:
    """The key of the record. No key of once() has this form: its text begins with a bracket."""
    return hashlib.sha256(b"take\0" + model._meta.db_table.encode() + b"\0" + request_id).digest()


def _begin(model: type[M], request_id: bytes, *, using: str) -> IdempotencyRecord:
    """A new record without rows. Waits for an open transaction with the same request; raises _Overtaken if it commits.

    After _Overtaken the transaction (or savepoint) around this call must be rolled back.
    """
    label = storable(f"take {model._meta.db_table} {request_id.decode('utf-8', 'backslashreplace')}", 255)
    seconds = load().allocation_retention_seconds or _FOR_EVER_SECONDS
    record = IdempotencyRecord(digest=_digest(model, request_id), label=label, expires_at=UtcNowPlus(seconds))
    try:
        record.save(using=using, force_insert=True)
    except IntegrityError:
        raise _Overtaken from None
    return record


def _recorded_meanwhile(model: type[M], request_id: bytes, *, using: str) -> list[M] | None:
    """The rows another transaction has just committed for `request_id`, past this one's snapshot where that can be.

    A shared lock: losers that wait together hold one each already, and would deadlock over an exclusive one.
    """
    quote = connections[using].ops.quote_name
    key = vendor(using).binary_parameter(connections[using], _digest(model, request_id))
    sql = f"SELECT * FROM {quote(IdempotencyRecord._meta.db_table)} WHERE digest = {placeholder(key)} "
    found = list(IdempotencyRecord.objects.using(using).raw(sql + vendor(using).shared_lock_sql, [key]))
    # A plain read could show the rows as they were before the other transaction changed them.
    return _read(model, found[0], model._base_manager.using(using).select_for_update()) if found else None


def _complete(record: IdempotencyRecord, rows: Sequence[models.Model], *, using: str) -> None:
    """Write down what was handed out; nothing handed out leaves no record."""
    mine = IdempotencyRecord.objects.using(using).filter(pk=record.pk)
    if rows:
        mine.update(result=[_text(row) for row in rows])
    else:
        mine.delete()


def _text(row: models.Model) -> str:
    return str(row._meta.pk.value_to_string(row))


def _read(model: type[M], record: IdempotencyRecord, rows: models.QuerySet[M]) -> list[M]:
    """The rows whose keys, as texts, the record has, in the order in which they were handed out."""
    key: Any = model._meta.pk
    found = {_text(row): row for row in rows.filter(pk__in=[key.to_python(text) for text in record.result])}
    return [found[text] for text in record.result if text in found]
