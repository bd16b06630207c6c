"""Which rows a request id was given: the memory of allocate.take()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError, connections, models

from jobqueue.db import vendor
from jobqueue.db.binary import place
from jobqueue.db.writable import M
from jobqueue.models import Allocation


class Overtaken(Exception):
    """Another transaction was faster with the same request or the same rows: look again."""


def recorded(model: type[M], request_id: bytes, *, using: str) -> list[M] | None:
    """The rows given to `request_id` as they are now, in their order; None if this snapshot shows no answer."""
    record = Allocation.objects.using(using).filter(table_label=model._meta.db_table, request_id=request_id).first()
    return None if record is None else _read(model, record, model._base_manager.using(using).all())


def begin(model: type[M], request_id: bytes, *, using: str) -> Allocation:
    """A new record without rows. Waits for a twin that is under way; raises Overtaken if it commits.

    After Overtaken the transaction (or savepoint) around this call must be rolled back.
    """
    record = Allocation(table_label=model._meta.db_table, request_id=request_id, row_ids=[])
    try:
        record.save(using=using, force_insert=True)
    except IntegrityError:
        raise Overtaken from None
    return record


def twin(model: type[M], request_id: bytes, *, using: str) -> list[M] | None:
    """The rows another transaction has just committed for `request_id`, past this one's snapshot where that can be.

    A shared lock: losers that wait together hold one each already, and would deadlock over an exclusive one.
    """
    quote = connections[using].ops.quote_name
    key = vendor(using).binary_parameter(connections[using], request_id)
    sql = f"SELECT * FROM {quote(Allocation._meta.db_table)} WHERE table_label = %s AND request_id = {place(key)} "
    sql += vendor(using).shared_lock_sql
    found = list(Allocation.objects.using(using).raw(sql, [model._meta.db_table, key]))
    # A plain read could show the rows as they were before the twin took them.
    return _read(model, found[0], model._base_manager.using(using).select_for_update()) if found else None


def complete(record: Allocation, rows: Sequence[models.Model], *, using: str) -> None:
    """Write down what was handed out; nothing handed out leaves no record."""
    mine = Allocation.objects.using(using).filter(pk=record.pk)
    if rows:
        mine.update(row_ids=[_text(row) for row in rows])
    else:
        mine.delete()


def _text(row: models.Model) -> str:
    return str(row._meta.pk.value_to_string(row))


def _read(model: type[M], record: Allocation, rows: models.QuerySet[M]) -> list[M]:
    key: Any = model._meta.pk
    found = {_text(row): row for row in rows.filter(pk__in=[key.to_python(text) for text in record.row_ids])}
    return [found[text] for text in record.row_ids if text in found]
