"""INSERT of rows that writes over those whose keys exist."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from django.db import connections, transaction
from django.db.models import Model
from django.db.models.constants import OnConflict

from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.db.statements import Parameter, placeholder


def upsert(
    model: type[Model],
    new: Iterable[Sequence[object]],
    *,
    keys: Sequence[str],
    changed: Sequence[str] = (),
    added: str | None = None,
    stamped: Sequence[str] = (),
    using: str,
) -> None:
    """Insert `new`; of rows that exist with the same `keys`, a unique index, write the other columns.

    `new` has the values of `keys` and then of `changed`; `stamped` are columns for the server's time. Columns that are
    not named get their defaults. With `added`, `new` is one row of `keys` and a number, which is added to that column.
    Integers and "" stand in the text. No objects of the model are made: bulk_create() took a quarter of some claims.
    """
    connection, server = connections[using], vendor(using)
    names = (*keys, *changed, *([added] if added else ()))
    written = [model._meta.get_field(name) for name in names]
    stamps = [server.now_sql] * len(stamped)
    params: list[Parameter] = []

    def text(field: Any, value: object) -> str:
        if value is None:
            return "NULL"
        if type(value) is int or value == "":
            return str(value) or "''"
        params.append(field.get_db_prep_save(value, connection))
        return placeholder(params[-1])

    rows = [[*map(text, written, row), *stamps] for row in new]
    values = ", ".join(f"({', '.join(row)})" for row in rows)
    table, *columns = map(connection.ops.quote_name, (model._meta.db_table, *names, *stamped))
    if added:
        ((*_, number),) = rows
        over = server.on_conflict_sql(table, ", ".join(keys), f"{added} = {{row}}{added} + {number}")
    else:
        over = connection.ops.on_conflict_suffix_sql(written, OnConflict.UPDATE, [*changed, *stamped], keys)
    with transaction.mark_for_rollback_on_error(using=using), connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values} {over}", params)


def hold_key(model: type[Model], key: bytes, using: str) -> None:
    """Make or lock the row of `key`, the primary key of `model`, until the transaction ends; waits for other holders.

    The model has one other column; it stays as it is.
    """
    field: Any = model._meta.pk
    with transaction.mark_for_rollback_on_error(using=using), connections[using].cursor() as cursor:
        parameter = field.get_db_prep_save(key, connections[using])
        cursor.execute(_hold_sql(model, placeholder(parameter), using), [parameter])


@cache
def _hold_sql(model: type[Model], value: str, using: str) -> str:
    quote = connections[using].ops.quote_name
    key, other = (quote(str(field.column)) for field in model._meta.concrete_fields)
    table = quote(model._meta.db_table)
    kept = vendor(using).on_conflict_sql(table, key, f"{other} = {{row}}{other}")
    return f"INSERT INTO {table} ({key}) VALUES ({value}) {kept}"


def digest(source: bytes, *parts: str) -> bytes:
    """The 16 bytes of a primary key; `source` is the process if the row is its own, else b""."""
    text = b"\x00".join([source, *(part.encode("utf-8", "surrogatepass") for part in parts)])
    return hashlib.sha256(text).digest()[:16]


def write_rows(rows: Sequence[Model], changing: Sequence[str], *, using: str) -> None:
    """Insert `rows`; of those that exist, write the columns `changing`. One transaction; none for no rows.

    Rows of one model come one after the other.
    """
    if not rows:
        return
    connection = connections[using]
    # By primary key: such a conflict locks the record and no gap.
    unique = ["id"] if connection.features.supports_update_conflicts_with_target else None

    def write() -> None:
        with vendor(using).transaction(connection):
            for model, of_model in groupby(rows, lambda row: type(row)):
                model._base_manager.using(using).bulk_create(
                    list(of_model), update_conflicts=True, update_fields=list(changing), unique_fields=unique
                )

    retry_transient("housekeeping", write, using=using)
