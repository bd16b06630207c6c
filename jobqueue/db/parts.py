"""Conditions that are looked at row by row in a part of the table, which an index has found and which has a limit.

If a planner saw the conditions in the same query, it could take one of them for rare and read all rows that meet it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import Case, IntegerField, Q, QuerySet, Value, When

from jobqueue.db import vendor
from jobqueue.db.prepared import Prepared


class Totals(NamedTuple):
    """The number of rows of a part, the lowest and the highest id, and how many meet the conditions."""

    number: int
    lowest: int
    highest: int
    meeting: int


def totals(part: QuerySet[Any], rest: Q) -> Totals:
    """The totals of a part, which has a limit."""
    assert rest, "without conditions all of them meet"
    found = _fetch(part, rest, "SELECT COUNT(*), MIN(c.id), MAX(c.id), SUM(c.meets) FROM ({}) c")
    return Totals(*(int(value or 0) for value in found[0])) if found else Totals(0, 0, 0, 0)


def ids_that_meet(part: QuerySet[Any], rest: Q, *, order: str = "", most: int) -> list[int]:
    """Up to `most` ids of a part, which has a limit. `order`: "ASC", "DESC", or "" for none."""
    assert rest, "without conditions all of them meet"
    sort = f" ORDER BY c.id {order}" if order else ""
    found = _fetch(part, rest, f"SELECT c.id FROM ({{}}) c WHERE c.meets = 1{sort} LIMIT {most}")
    return [int(job_id) for (job_id,) in found]


def lowest_ids(part: QuerySet[Any], most: int) -> tuple[int, list[int]]:
    """The number of rows of a part, which has a limit, and up to `most` of their ids, the lowest ones in order."""
    # One row at least: each of them has the number.
    found = _fetch(part, None, f"SELECT c.id, COUNT(*) OVER () FROM ({{}}) c ORDER BY c.id LIMIT {max(1, most)}")
    return (int(found[0][1]), [int(row[0]) for row in found[:most]]) if found else (0, [])


def first_rows(rows: QuerySet[Any], most: int) -> list[tuple[Any, ...]]:
    """The first `most` rows of a queryset of values, in its order."""
    compiler = rows.query.get_compiler(rows.db)
    try:
        sql, params = compiler.as_sql()
    except EmptyResultSet:
        return []
    converters = compiler.get_converters([entry[0] for entry in compiler.select])
    return Prepared(rows.db, sql + _limit(rows.db, most), params, converters).rows()


def raw_rows(rows: QuerySet[Any, Any]) -> list[tuple[Any, ...]]:
    """The rows of a queryset of values as the driver gives them: Django would convert each of their numbers."""
    try:
        sql, params = rows.query.get_compiler(rows.db).as_sql()
    except EmptyResultSet:
        return []
    with connections[rows.db].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def _limit(using: str, most: int | None) -> str:
    # PostgreSQL could expect fewer rows than the limit, and read and sort all of them instead of following the index.
    return f" LIMIT {vendor(using).unestimated_sql % most}"


def _fetch(part: QuerySet[Any], rest: Q | None, text: str) -> list[tuple[Any, ...]]:
    """The rows of a statement over those of the part: its ids and, with conditions, 1 or 0 as `meets`."""
    assert part.query.is_sliced, "a part has a limit"
    assert not part.query.low_mark, "a part begins with the first row"
    query = part.query.chain()
    query.clear_limits()
    if rest is not None:
        meets = Case(When(rest, then=Value(1)), default=Value(0), output_field=IntegerField())
        query.add_annotation(meets, "meets")
    try:
        sql, params = query.get_compiler(part.db).as_sql()
    except EmptyResultSet:
        return []
    sql += _limit(part.db, part.query.high_mark)
    with connections[part.db].cursor() as cursor:
        cursor.execute(text.format(sql), params)
        return list(cursor.fetchall())
