"""INSERT of rows that writes over those whose keys exist."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from django.db import connections, transaction
from django.db.models import Model

from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.db.statements import Parameter, Upsert, placeholder


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
    table, *columns = map(connection.ops.quote_name, (model._meta.db_table, *names, *stamped))
    adds = f"{added} = {{row}}{added} + {rows[0][-1]}" if added else ""
    sql = server.upsert_sql(connection, Upsert(table, columns, rows, keys, adds, [*changed, *stamped]))
    with transaction.mark_for_rollback_on_error(using=using), connection.cursor() as cursor:
        cursor.execute(sql, params)


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
    new = Upsert(table, [key], [[value]], [key], f"{other} = {{row}}{other}")
    return vendor(using).upsert_sql(connections[using], new)


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
    connection, server = connections[using], vendor(using)

    def write() -> None:
        with server.transaction(connection):
            for _, of_model in groupby(rows, type):
                server.write_over(connection, list(of_model), changing)

    retry_transient("housekeeping", write, using=using)
