"""Hints and rows found by the rowid, on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet

from jobqueue.db.statements import Q, Statements, bind, delete_listed


class SQLiteStatements(Statements):
    """Nobody analyzes a SQLite file, so its planner knows nothing of the tables."""

    # Without fractions of a second, which it rounds; %%%%s is %s once Django and its driver have read it.
    part_number_sql = "(CAST(STRFTIME('%%%%s', SUBSTR(%(expressions)s, 1, 19)) AS INTEGER) / %(size)s)"

    def walk_by(self, queryset: Q, index: str) -> Q:
        """Without statistics a range of the primary key looks cheaper to the planner than any index."""
        return bind(queryset, "{entry} INDEXED BY {index}", index)

    def within_ids(self, queryset: Q, above: int, up_to: int) -> Q:
        """By the rowid: an index of another condition would lead to all rows that meet it."""
        return bind(queryset, "{entry} NOT INDEXED")

    def of_ids(self, queryset: Q, ids: Sequence[int]) -> Q:
        """By the rowid: CROSS JOIN is done in this order. IN may become a scan where the statistics know few rows.

        LIMIT keeps the other conditions out, for which SQLite may read the whole table first, into a Bloom filter.
        """
        text = ",".join(f"({int(one)})" for one in ids)
        join = f"(VALUES {text}) AS wanted CROSS JOIN {{table}} AS j ON j.{{key}} = wanted.column1"
        return bind(queryset, f"(SELECT j.* FROM {join} LIMIT -1) {{alias}}")

    def delete_by_key(self, queryset: QuerySet[Any], keys: Sequence[int]) -> int:
        """In one statement, with the keys in its text."""
        return delete_listed(queryset, keys, "DELETE FROM {table} WHERE {key} IN ({keys})")
