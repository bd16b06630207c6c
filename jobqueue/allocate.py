"""Hand out rows of any table, each exactly once: serial numbers, vouchers, seats, phone numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from django.db import connections, models

from jobqueue import allocation_records as records
from jobqueue.db import vendor
from jobqueue.db.open_transaction import in_callers_transaction
from jobqueue.db.retry import retry_transient
from jobqueue.db.writable import M, check_changes, check_queryset, show
from jobqueue.exceptions import DatabaseBusy, InvalidValue
from jobqueue.validation import check_int, check_key

N_MAX = 10_000
_ROUNDS = 8


class _Short(Exception):
    """Fewer than n rows were free, but others may only be locked: look again, waiting."""


@dataclass(frozen=True, slots=True)
class _Request(Generic[M]):
    queryset: models.QuerySet[M]
    n: int
    changes: Mapping[str, Any]
    key: bytes | None
    using: str


def take(
    queryset: models.QuerySet[M], n: int = 1, *, changes: Mapping[str, Any], request_id: str | bytes | None = None
) -> list[M]:
    """Up to `n` (1-10000) rows of `queryset`, stamped with `changes`; in its order (else by key), [] when none.

    No row goes to two callers: `changes` must take it out of the queryset, and the stamp is an UPDATE under the
    queryset's own conditions. Rows that others have locked are skipped, so the order holds within one call, not
    across concurrent ones. Before it answers with fewer it looks again and waits for locked rows: nothing that a
    rollback gives back is reported as sold out. An index on filter and order keeps the search short.

    With `request_id` (1-64 bytes, per table) a repeated call gives the same rows again as they are now, whatever its
    other arguments; a request that got [] is not kept. Part of the caller's transaction on the queryset's database,
    else its own. Raises InvalidType, InvalidValue; DatabaseBusy; without request_id also OutcomeUnknown.
    """
    key = None if request_id is None else check_key(request_id, "request_id")
    rows = check_queryset(queryset)
    request = _Request(rows, check_int(n, "n", 1, N_MAX), check_changes(rows.model, changes), key, rows.db)
    return retry_transient(lambda: _take(request), using=rows.db, repeatable=key is not None)


def _take(request: _Request[M]) -> list[M]:
    # Only outside a transaction is a plain read fresh. First "any left?", then "answered before?": the other way
    # round, a twin of this request that takes the last row in between would make this one say sold out.
    alone = not in_callers_transaction(connections[request.using])
    sold_out = alone and not request.queryset.exists()
    read, skip_locked = records.recorded, connections[request.using].features.has_select_for_update_skip_locked
    for _ in range(_ROUNDS):
        same = None if request.key is None else read(request.queryset.model, request.key, using=request.using)
        if same is not None or sold_out:
            return same or []
        try:
            return _attempt(request, skip_locked)
        except _Short:
            # Rolled back first: those who wait hold nothing, and all lock in the same order.
            skip_locked = False
        except records.Overtaken:
            read = records.recorded if alone else records.twin
    raise DatabaseBusy(
        f"other transactions were faster {_ROUNDS} times, or committed what this one's snapshot cannot see. "
        "Nothing was handed out; redo the whole transaction."
    )


def _attempt(request: _Request[M], skip_locked: bool) -> list[M]:
    with vendor(request.using).transaction(connections[request.using]):
        if request.key is None:
            return _stamp(request, skip_locked)
        # The record comes first, so that a twin of this request waits for it before it has locked any row.
        record = records.begin(request.queryset.model, request.key, using=request.using)
        rows = _stamp(request, skip_locked)
        records.complete(record, rows, using=request.using)
        return rows


def _stamp(request: _Request[M], skip_locked: bool) -> list[M]:
    queryset = request.queryset
    rows = vendor(request.using).lock_first(queryset, request.n, skip_locked=skip_locked)
    if skip_locked and len(rows) < request.n:
        raise _Short
    if rows:
        rows = _each_once(rows, request.n)
        mine = queryset.order_by().filter(pk__in=[row.pk for row in rows])
        if vendor(request.using).update_locked(mine, request.changes) != len(rows):
            raise records.Overtaken
        if mine.exists():
            raise InvalidValue(
                f"with the changes {sorted(request.changes)} a row still matches the queryset and would be handed out "
                "again. Nothing was written; filter on a column that the changes set."
            )
        show(queryset.model, rows, request.changes, using=request.using)
    return rows


def _each_once(rows: list[M], n: int) -> list[M]:
    """A join gives a row as often as it finds a partner."""
    found = list({row.pk: row for row in rows}.values())
    if len(found) < len(rows) and len(found) < n:
        raise InvalidValue(
            "the queryset gives a row more than once, because it joins a table with several rows for it. Nothing was "
            "written; filter with Exists() instead."
        )
    return found
