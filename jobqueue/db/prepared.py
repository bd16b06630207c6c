"""Statements that Django builds and that run without it: many times, or with conditions that no planner may see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, DateTimeField, Expression, IntegerField, Model, Q, QuerySet, Value, When
from django.db.models.sql import DeleteQuery, UpdateQuery

from jobqueue.db import vendor, vendor_of
from jobqueue.db.expressions import Slot
from jobqueue.db.statements import Parameter, Statement, placeholder

T = TypeVar("T")


#: a part of a UNION; as a table, because SQLite takes no parentheses here, and the others no LIMIT without them
_PART = "SELECT * FROM ({text}) AS t{place}"


class Prepared:
    """One statement of one database, with slots."""

    def __init__(self, using: str, sql: str, params: Sequence[Parameter], converters: Mapping[int, Any]) -> None:
        self._using, self._params, self._converters = using, params, converters
        self._pieces = sql.split("%s")
        assert len(self._pieces) == len(params) + 1, f"a literal percent sign in {sql}"

    def rows(self, **values: object) -> list[tuple[Any, ...]]:
        """Run it; the rows, converted as the queryset would convert them."""
        connection = connections[self._using]
        return self._fetch(connection, *self._bound(values, connection))

    def rows_of_each(self, runs: Sequence[Mapping[str, object]], at_once: int = 100) -> list[tuple[Any, ...]]:
        """Run it for each of `runs`, `at_once` in one statement; all rows together.

        Where the database can, the parts of the UNION are no tables of their own, which the server would fill first.
        """
        portions = (runs[start : start + at_once] for start in range(0, len(runs), at_once))
        return [row for portion in portions for row in self._union(portion)]

    def seek_each(self, runs: Sequence[Mapping[str, object]], at_once: int | None = None) -> list[tuple[Any, ...]]:
        """As rows_of_each(), for many `runs`, where planning each of them would be much of the cost.

        Where the database can, the values are a table, so that one plan serves all runs of a statement.
        """
        if not vendor(self._using).joins_laterally:
            return self.rows_of_each(runs, at_once or 400)
        portions = (runs[start : start + (at_once or 500)] for start in range(0, len(runs), at_once or 500))
        return [row for portion in portions for row in self._joined(portion)]

    def _joined(self, runs: Sequence[Mapping[str, object]]) -> list[tuple[Any, ...]]:
        if len(runs) == 1:
            return self.rows(**runs[0])
        connection = connections[self._using]
        slots = {param.name: param for param in self._params if isinstance(param, Slot)}
        rows: list[str] = []
        params: list[Parameter] = []
        for values in runs:
            rendered = [slot.render(values[name], connection) for name, slot in slots.items()]
            rows.append(f"({', '.join(text for text, _ in rendered)})")
            params += [parameter for _, bound in rendered for parameter in bound]
        text, others = self._with_columns()
        wanted = f"(VALUES {', '.join(rows)}) AS v({', '.join(slots)})"
        return self._fetch(connection, f"SELECT t.* FROM {wanted} CROSS JOIN LATERAL ({text}) AS t", [*params, *others])

    def _with_columns(self) -> tuple[str, list[Parameter]]:
        """The text with a column of v for each slot, and the other parameters."""
        text, params = [self._pieces[0]], list[Parameter]()
        for param, piece in zip(self._params, self._pieces[1:], strict=True):
            if isinstance(param, Slot):
                text += [f"v.{param.name}", piece]
            else:
                text += ["%s", piece]
                params.append(param)
        whole = "".join(text)
        for param in self._params:
            if isinstance(param, Slot):
                # No plan can estimate a column of v, and a subquery around it would run for each row.
                whole = whole.replace(vendor(self._using).unestimated_sql % f"v.{param.name}", f"v.{param.name}")
        return whole, params

    def _union(self, runs: Sequence[Mapping[str, object]]) -> list[tuple[Any, ...]]:
        if len(runs) == 1:
            return self.rows(**runs[0])
        connection = connections[self._using]
        part = "({text})" if vendor_of(connection).has_parentheses_in_union else _PART
        texts: list[str] = []
        params: list[Parameter] = []
        for values in runs:
            text, bound = self._bound(values, connection)
            texts.append(part.format(text=text, place=len(texts)))
            params += bound
        return self._fetch(connection, " UNION ALL ".join(texts), params)

    def _fetch(self, connection: BaseDatabaseWrapper, text: str, params: Sequence[Parameter]) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(text, params)
            found = cursor.fetchall()
        if not found or not self._converters:
            return list(found)
        columns: list[Sequence[Any]] = list(zip(*found, strict=True))
        for position, (functions, expression) in self._converters.items():
            for convert in functions:
                columns[position] = _converted(columns[position], convert, expression, connection)
        return list(zip(*columns, strict=True))

    def change(self, **values: object) -> int:
        """Run it; how many rows it matched."""
        connection = connections[self._using]
        with transaction.mark_for_rollback_on_error(using=self._using), connection.cursor() as cursor:
            cursor.execute(*self._bound(values, connection))
            return int(cursor.rowcount)

    def _bound(self, values: Mapping[str, object], connection: BaseDatabaseWrapper) -> tuple[str, list[Parameter]]:
        text, params = [self._pieces[0]], []
        for param, piece in zip(self._params, self._pieces[1:], strict=True):
            if isinstance(param, Slot):
                sql, bound = param.render(values[param.name], connection)
                text.append(sql)
                params += bound
            else:
                text.append("%s")
                params.append(param)
            text.append(piece)
        return "".join(text), params


class PreparedInsert:
    """INSERT of one row of a table whose key is a number `id`."""

    def __init__(self, using: str, table: str, columns: Sequence[str]) -> None:
        quote = connections[using].ops.quote_name
        returning = vendor(using).returning_id_sql
        self._start = f"INSERT INTO {quote(table)} ({', '.join(map(quote, columns))}) VALUES ("
        self._end = f") {returning}"
        self._returns = bool(returning)

    def run(self, connection: BaseDatabaseWrapper, values: Sequence[Parameter]) -> int:
        """The id of a row with these values, one per column, each as the driver takes it."""
        sql = self._start + ", ".join(map(placeholder, values)) + self._end
        with transaction.mark_for_rollback_on_error(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(sql, values)
            return int(cursor.fetchone()[0] if self._returns else cursor.lastrowid)


def _converted(values: Sequence[Any], convert: Any, expression: Any, connection: Any) -> list[Parameter]:
    if isinstance(expression.output_field, DateTimeField):
        # Jobs that were added or claimed together share their instants. (Decoded JSON must not be shared.)
        known = {value: convert(value, expression, connection) for value in set(values)}
        return [known[value] for value in values]
    return [convert(value, expression, connection) for value in values]


def in_chunks(
    items: Iterable[T], size: Callable[[T], int], *, size_max: int, count_max: int | None = None
) -> Iterator[list[T]]:
    """`items` in chunks of one statement each, whose sizes add up to `size_max` at most, unless there is one item."""
    chunk: list[T] = []
    total = 0
    for item in items:
        if chunk and (len(chunk) == count_max or total + size(item) > size_max):
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size(item)
    if chunk:
        yield chunk


def prepare_rows(queryset: QuerySet[Any, Any], most: int | None = None) -> Prepared:
    """The SELECT of a queryset of values, or of its first `most`. One that locks must be prepared in a transaction."""
    compiler = queryset.query.get_compiler(queryset.db)
    sql, params = compiler.as_sql()
    converters = compiler.get_converters([entry[0] for entry in compiler.select])
    return Prepared(queryset.db, sql if most is None else sql + _limit(queryset.db, most), params, converters)


def prepare_count(queryset: QuerySet[Any, Any], *columns: str, given: Sequence[Slot] = ()) -> Prepared:
    """One row about a queryset of the values `columns`, or of any others, which may have a LIMIT.

    The number of its rows, the values `given` by the run, and the lowest value of each column, None if there are none.
    A value that all rows have, because the run asks for it, costs less as a given one: the server writes a table of the
    columns.
    """
    compiler = queryset.query.get_compiler(queryset.db)
    sql, params = compiler.as_sql()
    converters = compiler.get_converters([entry[0] for entry in compiler.select])
    quote = connections[queryset.db].ops.quote_name
    known = [f"%s AS given{place}" for place in range(len(given))]
    lowest = [f"MIN(c.{quote(column)}) AS lowest{place}" for place, column in enumerate(columns)]
    text = f"SELECT {', '.join(('COUNT(*) AS found', *known, *lowest))} FROM ({sql}) AS c"
    before = 1 + len(given)
    of_columns = {before + position: each for position, each in converters.items() if position < len(columns)}
    return Prepared(queryset.db, text, [*given, *params], of_columns)


def prepare_delete(queryset: QuerySet[Any, Any]) -> Prepared:
    """The DELETE of a queryset, without what Django does for rows that refer to these."""
    sql, params = queryset.query.chain(DeleteQuery).get_compiler(queryset.db).as_sql()
    return Prepared(queryset.db, sql, params, {})


def prepare_insert(model: type[Model], columns: Sequence[str], found: QuerySet[Any, Any]) -> Prepared:
    """The INSERT of a row with these columns for each row of `found`, a queryset of as many values."""
    sql, params = found.query.get_compiler(found.db).as_sql()
    table, *names = map(connections[found.db].ops.quote_name, (model._meta.db_table, *columns))
    return Prepared(found.db, f"INSERT INTO {table} ({', '.join(names)}) {sql}", params, {})


def prepare_change(queryset: QuerySet[Any, Any], changes: Mapping[str, object]) -> Prepared:
    """The UPDATE of queryset.update(**changes)."""
    sql, params = _update(queryset, changes)
    return Prepared(queryset.db, sql, params, {})


def prepare_change_by_key(queryset: QuerySet[Any, Any], changes: Mapping[str, object]) -> Prepared:
    """The UPDATE of vendor.update_by_key(queryset, changes)."""
    sql, params = _update(queryset, changes)
    table = queryset.model._meta.db_table
    sql = vendor(queryset.db).by_key_sql(connections[queryset.db], table, sql)
    return Prepared(queryset.db, sql, params, {})


def prepare_change_returning(
    queryset: QuerySet[Any, Any], changes: Mapping[str, object], columns: Sequence[str | Expression]
) -> Prepared:
    """The same, whose rows() are `columns` of the rows it wrote, as they are afterwards, in no order.

    Only for databases that have UPDATE .. RETURNING. One that locks must be prepared inside a transaction.
    """
    reading = queryset.model._base_manager.using(queryset.db).values_list(*columns).query.get_compiler(queryset.db)
    reading.as_sql()
    returned, converters = reading.select, reading.get_converters([entry[0] for entry in reading.select])
    sql, params = _update(queryset, changes)
    params = [*params, *chain.from_iterable(params for _, (_, params), _ in returned)]
    return Prepared(
        queryset.db, f"{sql} RETURNING {', '.join(text for _, (text, _), _ in returned)}", params, converters
    )


def _update(queryset: QuerySet[Any, Any], changes: Mapping[str, object]) -> Statement:
    query: Any = queryset.query.chain(UpdateQuery)
    query.add_update_values(changes)
    query.clear_select_clause()
    sql, params = query.get_compiler(queryset.db).as_sql()
    return sql, params


# ---- Parts of a table, which an index has found and which have a limit. Other conditions are looked at row by row: if
# a planner saw them in the same query, it could take one of them for rare and read all rows that meet it.


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
    found = _fetch(part, rest, f"SELECT c.id FROM ({{}}) c WHERE c.meets = 1{sort}{vendor(part.db).limit_sql(most)}")
    return [int(job_id) for (job_id,) in found]


def lowest_ids(part: QuerySet[Any], most: int) -> tuple[int, list[int]]:
    """The number of rows of a part, which has a limit, and up to `most` of their ids, the lowest ones in order."""
    # One row at least: each of them has the number.
    limit = vendor(part.db).limit_sql(max(1, most))
    found = _fetch(part, None, f"SELECT c.id, COUNT(*) OVER () FROM ({{}}) c ORDER BY c.id{limit}")
    return (int(found[0][1]), [int(row[0]) for row in found[:most]]) if found else (0, [])


def first_rows(rows: QuerySet[Any], most: int) -> list[tuple[Any, ...]]:
    """The first `most` rows of a queryset of values, in its order."""
    try:
        return prepare_rows(rows, most).rows()
    except EmptyResultSet:
        return []


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
    server = vendor(using)
    return server.limit_sql(server.unestimated_sql % most)


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
