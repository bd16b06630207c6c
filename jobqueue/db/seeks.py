"""Statements that read the rows they need: the first of each group by a seek each, or those between two ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.parameters import Parameter

Q = TypeVar("Q", bound=models.QuerySet[Any, Any])


class GroupSeek(NamedTuple):
    """What next_in_groups_sql() reads: columns of a row, and of the row of `other` whose id its column `link` has."""

    table: str
    group: str  # an index leads with this column, then the id
    columns: Sequence[str]
    other: str
    link: str
    other_columns: Sequence[str]


class Seeks:
    """The part of Dialect that finds groups and ranges. All names are names in SQL, quoted where that is needed."""

    def within_ids(self, queryset: Q, above: int, up_to: int) -> Q:
        """The same query, which asks for ids above the one and up to the other: no row outside of these is read."""
        return queryset

    @contextmanager
    def in_index_order(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """A block for a statement of its own transaction whose rows come in the order of an index: no plan may sort."""
        yield

    def of_ids(self, queryset: Q, ids: Sequence[int]) -> Q:
        """The query of these rows alone (at least one, each named once): no other row is read."""
        return queryset

    def loose_scan_sql(self, table: str, columns: str, index: str, where: str = "") -> str | None:
        """The first %s combinations of columns ("a, b") that lead `index`, of the rows that meet `where`, in order.

        None where the database has no scan that costs less than a seek for each of a few combinations.
        """
        return None

    def distinct_sql(self, table: str, column: str, index: str) -> str:
        """The first %s values of the column that leads `index`, in order: one seek each, however many rows have it."""
        return _walk(table, column, "")

    def distinct_after_sql(self, table: str, column: str, index: str) -> str:
        """As distinct_sql, for values above a first %s; the number of values is the second."""
        return _walk(table, column, f" WHERE {column} > %s")

    def distinct_where_sql(
        self, table: str, column: str, index: str, conditions: Sequence[str], order: Sequence[str]
    ) -> str:
        """All values of the column that leads `index` for which a row meets the conditions ("status = 0"), in no order.

        The index has the columns of the conditions, then those of `order`.
        """
        # Not EXISTS, which a planner may turn into a join; and in the order of the index, or it may read all rows.
        first = (
            f"SELECT 1 FROM {table} AS j WHERE j.{column} = names.{column} AND "
            f"{' AND '.join(f'j.{condition}' for condition in conditions)} "
            f"ORDER BY {', '.join(f'j.{name}' for name in order)} LIMIT 1"
        )
        names = self.distinct_sql(table, column, index).removesuffix(" LIMIT %s")
        return f"SELECT names.{column} FROM ({names}) AS names WHERE ({first}) IS NOT NULL"

    def first_ids_after_sql(self, table: str, column: str, index: str) -> str:
        """As distinct_after_sql, each value with the lowest id of its rows; `index` has the id behind the column."""
        sql = self.distinct_after_sql(table, column, index)
        return f"SELECT f.{column}, (SELECT MIN(id) FROM {table} WHERE {column} = f.{column}) FROM ({sql}) AS f"

    def first_rows_sql(self, table: str, column: str, index: str, shown: str, where: str) -> str:
        """For each row of first_ids_after_sql its id, its column `shown` (NULL unless it meets `where`), and its value.

        A lookup for each row: PostgreSQL would read the whole table for a join with a condition that few rows meet.
        """
        first = self.first_ids_after_sql(table, column, index)
        found = f"SELECT e.{shown} FROM {table} e WHERE e.id = heads.id AND {where}"
        columns = f"heads.id, ({found}), heads.{column}"
        return f"WITH heads ({column}, id) AS ({first}) SELECT {columns} FROM heads ORDER BY heads.id"

    def next_in_groups_sql(self, seek: GroupSeek, after: Sequence[tuple[int, int]]) -> tuple[str, list[Parameter]]:
        """For each (group, id) of `after` the first row of that group behind that id; text and parameters.

        The lookups are a table of constants; one seek each, by the index on group and id.
        """
        group = seek.group
        wanted = " UNION ALL ".join(f"SELECT {number:d} AS {group}, {last:d} AS after" for number, last in after)
        # By group and id, which one index gives in this order: with id alone an optimizer may walk the primary key.
        first = (
            f"SELECT f.id FROM {seek.table} f WHERE f.{group} = w.{group} AND f.id > w.after "
            f"ORDER BY f.{group}, f.id LIMIT 1"
        )
        columns = [*(f"p.{name}" for name in seek.columns), *(f"j.{name}" for name in seek.other_columns)]
        sql = (
            f"SELECT {', '.join(columns)} "
            f"FROM (SELECT ({first}) AS id FROM ({wanted}) w) h JOIN {seek.table} p ON p.id = h.id "
            f"LEFT JOIN {seek.other} j ON j.id = p.{seek.link}"
        )
        return sql, []


def _walk(table: str, column: str, first: str) -> str:
    least = f"SELECT MIN({column}) FROM {table}"
    return (
        f"WITH RECURSIVE found ({column}) AS ({least}{first} UNION ALL "
        f"SELECT ({least} WHERE {column} > found.{column}) FROM found WHERE found.{column} IS NOT NULL) "
        f"SELECT {column} FROM found WHERE {column} IS NOT NULL LIMIT %s"
    )
