"""Change or delete many rows in committed chunks, so that no transaction waits for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.db import connections, models

from jobqueue.base.validation import check_int, check_seconds
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.querysets import M, bound, check_changes, filters_by_window, gives_other_rows
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InsideTransaction, InvalidType, InvalidValue

# Longer lists of keys exceed what MySQL plans by index, or SQLite takes as parameters.
CHUNK_MAX = 10_000


@dataclass(frozen=True, slots=True)
class ChunkProgress:
    """How much has been committed so far."""

    rows: int = 0  # changed or deleted rows of the model itself
    chunks: int = 0
    last_pk: object = None  # the highest primary key that was looked at; pass it as `after` to go on from here


OnChunk = Callable[[ChunkProgress], object]


def update_in_chunks(
    queryset: models.QuerySet[M],
    changes: Mapping[str, object],
    *,
    chunk_size: int = 1000,
    sleep_seconds: float = 0.0,
    after: object = None,
    on_chunk: OnChunk | None = None,
) -> ChunkProgress:
    """queryset.update(**changes), in transactions of up to `chunk_size` (1-10000) rows each, by primary key upwards.

    Rows are found without locks and changed under the queryset's own conditions: one that has left it meanwhile is left
    alone, one that enters it behind the position is not seen. Between two chunks it sleeps `sleep_seconds`.
    `on_chunk(progress)` is called after every commit: store its `last_pk`, pass it as `after`, and an interrupted run
    goes on where it was. Each chunk is redone after a deadlock or lock timeout.

    Raises InsideTransaction, InvalidType and InvalidValue before anything is written; DatabaseBusy and OutcomeUnknown
    after which the chunks before are committed.
    """
    rows = _check(queryset)
    if not changes:
        raise InvalidValue("changes is empty. Nothing was written.")
    made = check_changes(rows.model, changes)

    def change(chunk: models.QuerySet[M]) -> int:
        return vendor(rows.db).update_by_key(chunk, made)

    return _in_chunks(rows, change, chunk_size, sleep_seconds, after, on_chunk)


def delete_in_chunks(
    queryset: models.QuerySet[M],
    *,
    chunk_size: int = 1000,
    sleep_seconds: float = 0.0,
    after: object = None,
    on_chunk: OnChunk | None = None,
) -> ChunkProgress:
    """queryset.delete() in such chunks, with Django's cascades and signals; see update_in_chunks()."""
    rows = _check(queryset)

    def change(chunk: models.QuerySet[M]) -> int:
        _, by_model = chunk.delete()
        return by_model.get(rows.model._meta.label, 0)

    return _in_chunks(rows, change, chunk_size, sleep_seconds, after, on_chunk)


def _in_chunks(
    rows: models.QuerySet[M],
    change: Callable[[models.QuerySet[M]], int],
    chunk_size: int,
    sleep_seconds: float,
    after: object,
    on_chunk: OnChunk | None,
) -> ChunkProgress:
    using = rows.db
    check_int(chunk_size, "chunk_size", 1, CHUNK_MAX)
    check_seconds(sleep_seconds, "sleep_seconds", zero=True)
    if on_chunk is not None and not callable(on_chunk):
        raise InvalidType(f"on_chunk must be a function, got {type(on_chunk).__name__}. Nothing was written.")
    if in_open_transaction(using):
        raise InsideTransaction(
            f"chunks cannot be committed one by one inside transaction.atomic() on {using!r}. Nothing was written; "
            "call this outside the block."
        )
    progress = ChunkProgress(last_pk=after)
    while True:
        ahead = rows if progress.last_pk is None else rows.filter(pk__gt=progress.last_pk)
        keys = list(ahead.order_by("pk").values_list("pk", flat=True)[:chunk_size])
        if not keys:
            return progress
        done = _commit(rows.order_by().filter(pk__in=keys), change, using)
        progress = ChunkProgress(progress.rows + done, progress.chunks + 1, keys[-1])
        if on_chunk is not None:
            on_chunk(progress)
        if len(keys) < chunk_size:
            return progress
        time.sleep(sleep_seconds)


def _commit(rows: models.QuerySet[M], change: Callable[[models.QuerySet[M]], int], using: str) -> int:
    def once() -> int:
        with vendor(using).transaction(connections[using]):
            return change(rows.all())

    return retry_transient("bulk", once, using=using, repeatable=False)


def _check(queryset: models.QuerySet[M]) -> models.QuerySet[M]:
    found = bound(queryset)
    if found.query.is_sliced or gives_other_rows(found) or filters_by_window(found.query):
        raise InvalidValue(
            "a queryset with a slice, distinct(), values(), union(), aggregates or a filter by a window function "
            "cannot be cut into chunks by primary key. Nothing was written; filter by the keys instead."
        )
    return found
