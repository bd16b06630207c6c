"""Statements whose text depends on the database: hints, seeks, inserts, and rows found by their keys.

All names that the methods take are names in SQL, quoted where that is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from django.db import Error, connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.db.models.constants import OnConflict
from django.db.models.sql.compiler import SQLCompiler
from django.db.models.sql.datastructures import BaseTable

#: a value as a driver takes it
Parameter = Any
#: text with placeholders, and a sequence of their values
Statement = tuple[str, Any]
Q = TypeVar("Q", bound=models.QuerySet[Any, Any])


class Placed(str):
    """A parameter that stands for another value; a statement must have it at placeholder(), not at a bare %s."""

    __slots__ = ()
    sql = "%s"


def placeholder(parameter: Parameter) -> str:
    """The text at which `parameter` stands in a statement."""
    return parameter.sql if isinstance(parameter, Placed) else "%s"


class GroupSeek(NamedTuple):
    """What next_in_groups_sql() reads: columns of a row, and of the row of `other` whose id its column `link` has."""

    table: str
    group: str  # an index leads with this column, then the id
    columns: Sequence[str]
    other: str
    link: str
    other_columns: Sequence[str]


class LooseScan(NamedTuple):
    """What loose_scan_sql() reads: the combinations of the columns that lead an index.

    `after`: only values above a first %s. `with_id`: each value with the lowest id of its rows, if the index has the id
    behind the column. `where`: only of rows that meet these conditions ("status = 0"). With `order`, the columns of the
    index behind those of `where`: all values, in no order, and without the %s for their number.
    """

    table: str
    columns: Sequence[str]
    index_name: str
    where: Sequence[str] = ()
    order: Sequence[str] = ()
    after: bool = False
    with_id: bool = False


class Upsert(NamedTuple):
    """Rows for upsert_sql(), whose values are text already. Either `changes` or `overwritten` is given."""

    table: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    keys: Sequence[str]  # columns of a unique index
    changes: str = ""  # what follows SET; {row} stands before a column for the value that the row has
    overwritten: Sequence[str] = ()  # columns that get the new values; not quoted


class Statements:
    """The part of Dialect that writes SQL."""

    #: an integer column that no index may be used for
    unindexed_sql = "(%(expressions)s + 0)"
    #: an integer in the form whose sum is fastest
    addend_sql = "%(expressions)s"
    #: how many parts of %(size)s seconds are between 1970 and an instant, as an integer; in UTC a day has 86,400 s
    part_number_sql = "NULL"
    #: a value to compare a column with, if the plan must not depend on how many rows the statistics say have it
    unestimated_sql = "%s"
    #: whether a subquery in FROM may use columns of what stands before it, with a plan that seeks for each of its rows
    joins_laterally = False
    #: whether a part of a UNION may be "(SELECT ... LIMIT 1)"
    has_parentheses_in_union = False
    #: whether (a, b) > (x, y) is one range of an index
    compares_rows = False
    #: whether loose_scan_sql() takes several columns, at a lower cost than a seek for each of a few combinations
    scans_combinations = False
    #: most rows of one INSERT
    insert_rows_max = 1000
    #: suffix of a read that sees the newest committed row and locks only its index entry
    shared_lock_sql = ""
    #: suffix of a read that keeps others from changing the row until the transaction ends
    for_share_sql = ""
    #: suffix of an INSERT that then returns the id, where the driver does not report it
    returning_id_sql = ""

    #: regular expressions for the beginnings of statements that the server precedes with a commit
    commits_before: tuple[str, ...] = ()

    def __init__(self) -> None:
        #: the beginning of each INSERT by its table and columns: columns with defaults are left out
        self._inserts: dict[tuple[str, ...], str] = {}

    # ---- hints
    def force_index(self, queryset: Q, index: str) -> Q:
        """The same query, bound to `index` where the database takes hints."""
        return queryset

    def walk_by(self, queryset: Q, index: str) -> Q:
        """As force_index(), and also where a range of the primary key could be walked instead."""
        return self.force_index(queryset, index)

    def within_ids(self, queryset: Q, above: int, up_to: int) -> Q:
        """The same query, which asks for ids above the one and up to the other: no row outside of these is read."""
        return queryset

    def of_ids(self, queryset: Q, ids: Sequence[int]) -> Q:
        """The query of these rows alone (at least one, each named once): no other row is read."""
        return queryset

    @contextmanager
    def in_index_order(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """A block for a statement of its own transaction whose rows come in the order of an index: no plan may sort."""
        yield

    def limit_sql(self, most: int | str, offset: int = 0) -> str:
        """The end of a SELECT that gives `most` rows, behind the first `offset` ones."""
        return f" LIMIT {most}" + (f" OFFSET {offset}" if offset else "")

    # ---- rows found by key
    def lock_rows(self, queryset: Q, limit: int | None = None) -> Q:
        """The first `limit` rows of a queryset, None = all, locked; those that others have locked are left out.

        Rows that it joins are locked, too; LockDialect.lock_own() leaves them out.
        """
        return queryset.select_for_update(skip_locked=True)[:limit]

    def update_unlocked(self, queryset: QuerySet[Any], changes: Mapping[str, object]) -> int:
        """Update in one statement those rows that no other transaction has locked, inside transaction(); how many.

        By default all rows; has_update_returning: the caller names the unlocked ones."""
        return int(queryset.update(**changes))

    def update_by_key(self, queryset: QuerySet[Any], changes: Mapping[str, object]) -> int:
        """queryset.update(**changes) for rows that the queryset names by key; returns how many there were."""
        return queryset.update(**changes)

    def by_key_sql(self, connection: BaseDatabaseWrapper, table: str, sql: str) -> str:
        """The UPDATE of update_by_key(), as text, from one that Django has written."""
        return sql

    def delete_by_key(self, queryset: QuerySet[Any], keys: Sequence[int]) -> int:
        """Delete the rows with these primary keys, reading no others; returns how many there were."""
        return queryset.filter(pk__in=keys).delete()[0]

    # ---- seeks
    def loose_scan_sql(self, scan: LooseScan) -> str:
        """The first %s combinations of the columns, in order: one seek each, however many rows."""
        table, (column,), _, where, order, after, with_id = scan
        assert bool(where) == bool(order), "a recursion follows all values of the column"
        least = f"SELECT MIN({column}) FROM {table}"
        found = (
            f"WITH RECURSIVE found ({column}) AS ({least}{f' WHERE {column} > %s' if after else ''} UNION ALL "
            f"SELECT ({least} WHERE {column} > found.{column}) FROM found WHERE found.{column} IS NOT NULL) "
            f"SELECT {column} FROM found WHERE {column} IS NOT NULL"
        )
        if order:
            # Not EXISTS, which a planner may turn into a join; and in the order of the index, or it may read all rows.
            first = (
                f"SELECT 1 FROM {table} AS j WHERE j.{column} = names.{column} AND "
                f"{' AND '.join(f'j.{condition}' for condition in where)} "
                f"ORDER BY {', '.join(f'j.{name}' for name in order)} LIMIT 1"
            )
            return f"SELECT names.{column} FROM ({found}) AS names WHERE ({first}) IS NOT NULL"
        if with_id:
            lowest = f"(SELECT MIN(id) FROM {table} WHERE {column} = f.{column})"
            return f"SELECT f.{column}, {lowest} FROM ({found} LIMIT %s) AS f"
        return f"{found} LIMIT %s"

    def first_rows_sql(self, table: str, column: str, index: str, shown: str, where: str) -> str:
        """For each row of loose_scan_sql(after=True, with_id=True): its id, its column `shown`, and its value.

        NULL is shown unless the row meets `where`. A lookup for each row: PostgreSQL would read the whole table for
        a join with a condition that few rows meet.
        """
        first = self.loose_scan_sql(LooseScan(table, [column], index, after=True, with_id=True))
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

    # ---- inserts
    def insert(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], rows: Sequence[Sequence[Parameter]]
    ) -> list[int]:
        """Insert `rows` with one statement; returns their ids in the order of the rows."""
        sql, params = self._insert_sql(connection, table, columns, rows)
        with transaction.mark_for_rollback_on_error(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(sql + " RETURNING id", params)
            # No standard promises the order of RETURNING, but ids are handed out in the order of the rows.
            return sorted(row[0] for row in cursor.fetchall())

    def insert_one(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], row: Sequence[Parameter], also: str
    ) -> tuple[int, Parameter]:
        """Insert one row; returns its id, and its column `also`: None where an INSERT cannot return it."""
        sql, params = self._insert_sql(connection, table, columns, [row])
        with transaction.mark_for_rollback_on_error(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(f"{sql} RETURNING id, {also}", params)
            (found,) = cursor.fetchall()
            return found[0], found[1]

    def _insert_sql(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], rows: Sequence[Sequence[Parameter]]
    ) -> tuple[str, list[Parameter]]:
        names = (table, *columns)
        begin = self._inserts.get(names)
        if begin is None:
            quoted = [connection.ops.quote_name(name) for name in names]
            begin = self._inserts[names] = f"INSERT INTO {quoted[0]} ({', '.join(quoted[1:])}) VALUES "
        values = [f"({', '.join(map(placeholder, row))})" for row in rows]
        return begin + ", ".join(values), [value for row in rows for value in row]

    def upsert_sql(self, connection: BaseDatabaseWrapper, new: Upsert) -> str:
        """The INSERT of rows that changes those which exist. A conflict on the primary key locks that row only."""
        values = ", ".join(f"({', '.join(row)})" for row in new.rows)
        if new.changes:
            over = self._on_conflict_sql(new)
        else:
            over = connection.ops.on_conflict_suffix_sql([], OnConflict.UPDATE, new.overwritten, new.keys)
        return f"INSERT INTO {new.table} ({', '.join(new.columns)}) VALUES {values} {over}"

    def _on_conflict_sql(self, new: Upsert) -> str:
        return f"ON CONFLICT ({', '.join(new.keys)}) DO UPDATE SET {new.changes.format(row=f'{new.table}.')}"

    def write_over(self, connection: BaseDatabaseWrapper, rows: list[models.Model], changing: Sequence[str]) -> None:
        """Insert rows of one model; of those whose `id` exists, write the columns `changing`."""
        # By primary key: such a conflict locks the record and no gap.
        unique = ["id"] if connection.features.supports_update_conflicts_with_target else None
        table = type(rows[0])._base_manager.using(connection.alias)
        table.bulk_create(rows, update_conflicts=True, update_fields=list(changing), unique_fields=unique)

    def insert_missing(self, connection: BaseDatabaseWrapper, rows: Sequence[models.Model]) -> None:
        """Insert those of `rows`, at least one and all of one model, whose unique keys no row has; change no other row.

        Waits for a transaction that inserts the same key, and knows neither the ids nor how many it has inserted.
        """
        table = type(rows[0])._base_manager.using(connection.alias)
        table.bulk_create(rows, batch_size=self.insert_rows_max, ignore_conflicts=True)


class _FromEntry(BaseTable):
    """A table in FROM, written by a template of {entry}, Django's text, {table}, {alias}, {key} and {index}."""

    template, index = "{entry}", ""

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Statement:
        sql, params = super().as_sql(compiler, connection)
        names = {"table": self.table_name, "alias": self.table_alias or "", "key": "id", "index": self.index}
        quoted = {word: connection.ops.quote_name(name) for word, name in names.items()}
        return self.template.format(entry=sql, **quoted), params

    def relabeled_clone(self, change_map: Mapping[str | None, str]) -> _FromEntry:
        """The same text when the query becomes a subquery."""
        clone = type(self)(self.table_name, change_map.get(self.table_alias, self.table_alias))
        clone.template, clone.index = self.template, self.index
        return clone


def bind(queryset: Q, template: str, index: str = "") -> Q:
    """The same query, whose table is written as `template` says.

    "{entry} FORCE INDEX ({index})": the optimizer must not trade the index for a sort, or for a walk over other rows.
    "(SELECT * FROM {table} WHERE {key} > 5 OFFSET 0) {alias}": only these rows.
    """
    bound = queryset.all()
    alias = bound.query.get_initial_alias()
    entry = _FromEntry(bound.model._meta.db_table, alias or "")
    entry.template, entry.index = template, index
    bound.query.alias_map[alias] = entry
    return bound


def delete_listed(queryset: QuerySet[Any], keys: Sequence[int], sql: str) -> int:
    """Delete the rows with these primary keys by `sql`, which names {table}, {key} and {keys}; returns how many."""
    connection, meta = connections[queryset.db], queryset.model._meta
    table, key = (connection.ops.quote_name(name) for name in (meta.db_table, str(meta.pk.column)))
    # The keys are in the text because on SQLite other writers would wait while Django builds a list of parameters.
    text = ",".join(str(int(one)) for one in keys)
    with transaction.mark_for_rollback_on_error(using=queryset.db), connection.cursor() as cursor:
        cursor.execute(sql.format(table=table, key=key, keys=text))
        return int(cursor.rowcount)


def marks(values: Sequence[object]) -> str:
    """A placeholder for each of these."""
    return ", ".join(["%s"] * len(values))


def one_value(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Parameter] | None = None) -> Any:
    """The first column of the first row of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchone()[0]


@contextmanager
def restored(connection: BaseDatabaseWrapper, restore: Callable[[], object]) -> Iterator[None]:
    """A block for which variables of the session were changed; at its end `restore` puts them back.

    A session that was opened in the block has its own variables and is left alone.
    """
    session = connection.connection
    try:
        yield
    finally:
        if connection.connection is session:
            try:
                restore()
            except Error:
                # The session is lost, or could keep what was set: a caller must not meet it. In a transaction the
                # caller notices a lost session, and the end of a failed transaction takes back what was set in it.
                if not connection.in_atomic_block:
                    connection.close()
