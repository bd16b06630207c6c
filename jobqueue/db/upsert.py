"""INSERT of many rows that writes over those whose keys exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from django.db import connections, transaction
from django.db.models import Model, QuerySet
from django.db.models.constants import OnConflict

M = TypeVar("M", bound=Model)


def upsert(rows: QuerySet[M], new: Iterable[M], *, keys: Sequence[str], changed: Sequence[str]) -> None:
    """Insert `new`; of rows that exist with the same `keys`, a unique index, write the columns `changed`."""
    # MySQL names no index: any unique one counts, and these tables have one.
    named = connections[rows.db].features.supports_update_conflicts_with_target
    unique = [*keys] if named else None
    rows.bulk_create(new, update_conflicts=True, unique_fields=unique, update_fields=[*changed])


def upsert_integers(
    model: type[Model], new: Iterable[Sequence[int]], *, keys: Sequence[str], changed: Sequence[str], using: str
) -> None:
    """The same for a table of integers: `new` has the values of `keys` and then of `changed`, which are all columns.

    They are written into the text, at a tenth of what Django's objects and parameters cost.
    """
    connection = connections[using]
    table, *columns = map(connection.ops.quote_name, (model._meta.db_table, *keys, *changed))
    values = ", ".join(f"({', '.join(str(int(value)) for value in row)})" for row in new)
    fields = [model._meta.get_field(name) for name in (*keys, *changed)]
    over = connection.ops.on_conflict_suffix_sql(fields, OnConflict.UPDATE, changed, keys)
    with transaction.mark_for_rollback_on_error(using=using), connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values} {over}")
