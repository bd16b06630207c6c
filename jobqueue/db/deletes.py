"""A DELETE of rows by their primary keys, which stand in its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections, transaction
from django.db.models import QuerySet


def delete_listed(queryset: QuerySet[Any], keys: Sequence[int], sql: str) -> int:
    """Delete the rows with these primary keys by `sql`, which names {table}, {key} and {keys}; returns how many."""
    connection, meta = connections[queryset.db], queryset.model._meta
    table, key = (connection.ops.quote_name(name) for name in (meta.db_table, str(meta.pk.column)))
    # The keys are in the text because on SQLite other writers would wait while Django builds a list of parameters.
    text = ",".join(str(int(one)) for one in keys)
    with transaction.mark_for_rollback_on_error(using=queryset.db), connection.cursor() as cursor:
        cursor.execute(sql.format(table=table, key=key, keys=text))
        return int(cursor.rowcount)
