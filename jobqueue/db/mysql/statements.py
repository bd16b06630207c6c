"""FORCE INDEX, loose scans and inserts on MySQL and MariaDB: InnoDB locks what it reads, so no other index must do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobqueue.db.statements import LooseScan, Parameter, Placed, Q, Statements, Upsert, bind, delete_listed

LIMIT_MAX = 2**31
#: characters beyond what utf8mb3 can hold
FOUR_BYTES = re.compile("[\U00010000-\U0010ffff]")


class Hex(Placed):
    """Hexadecimal digits that stand for bytes; the server turns them back once per statement, before it plans it.

    The drivers write parameters into the statement's text. Bytes that are no text make that text unreadable: as long as
    it runs, the server refuses every look at its list of processes and transactions (error 3854). Characters of four
    bytes (emoji) have the same effect: what shows the statements has three bytes for each.
    """

    __slots__ = ()
    sql = "UNHEX(%s)"


class HexText(Placed):
    """Hexadecimal digits that stand for text in UTF-8. Compared with a column, the column's binary collation counts."""

    __slots__ = ()
    sql = "CONVERT(UNHEX(%s) USING utf8mb4)"


def readable(text: str) -> Parameter:
    """Text as MySQL can show it in a statement: as HexText if it has characters of four bytes."""
    return text if text.isascii() or not FOUR_BYTES.search(text) else HexText(text.encode().hex())


def force_index(queryset: Q, index: str) -> Q:
    """Without it the optimizer may read, sort and so lock the whole backlog."""
    return bind(queryset, "{entry} FORCE INDEX ({index})", index)


def update_by_key(queryset: QuerySet[Any], changes: Mapping[str, object]) -> int:
    """With FORCE INDEX (PRIMARY): led by another index, the UPDATE would wait for rows it does not change."""
    connection = connections[queryset.db]

    def hinted(execute: Callable[..., Parameter], sql: str, *rest: object) -> Parameter:
        return execute(by_key_sql(connection, queryset.model._meta.db_table, sql), *rest)

    with connection.execute_wrapper(hinted):
        return queryset.update(**changes)


def by_key_sql(connection: BaseDatabaseWrapper, table: str, sql: str) -> str:
    """An UPDATE of `table` with FORCE INDEX (PRIMARY); other statements as they are."""
    begin = f"UPDATE {connection.ops.quote_name(table)} "
    return f"{begin}FORCE INDEX (PRIMARY) {sql.removeprefix(begin)}" if sql.startswith(begin) else sql


class MySQLStatements(Statements):
    """MySQL 8.0.17 and later; MariaDBStatements inherits from it."""

    # Integers are added up as decimals. As floats the sums of a page take two thirds of the time; they are exact below
    # 2**53, which are 285 years in microseconds.
    addend_sql = "(%(expressions)s + 0e0)"
    # TO_SECONDS() counts from the year 0.
    part_number_sql = "((TO_SECONDS(%(expressions)s) - 62167219200) DIV %(size)s)"
    has_parentheses_in_union = True
    scans_combinations = True
    # MariaDB has no FOR SHARE; both know this older form.
    shared_lock_sql = for_share_sql = "LOCK IN SHARE MODE"

    # Temporary tables are an exception.
    commits_before = (
        r"(?:CREATE|DROP)\b(?!\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b)",
        r"(?:ALTER|RENAME|TRUNCATE|GRANT|REVOKE|FLUSH|INSTALL|UNINSTALL|XA)\b",
        r"(?:ANALYZE|CHECK|OPTIMIZE|REPAIR|LOCK|UNLOCK)\s+(?:(?:LOCAL|NO_WRITE_TO_BINLOG)\s+)?TABLES?\b",
        r"SET\s+PASSWORD\b",
        r"SET\s+(?:SESSION\s+|@@(?:SESSION\.)?)?AUTOCOMMIT\b",
    )

    # By key: with FORCE INDEX (PRIMARY).
    force_index = staticmethod(force_index)
    update_by_key = staticmethod(update_by_key)
    by_key_sql = staticmethod(by_key_sql)

    def within_ids(self, queryset: Q, above: int, up_to: int) -> Q:
        """By the primary key: another index would lead to all rows that meet its conditions, and to a sort."""
        return force_index(queryset, "PRIMARY")

    def of_ids(self, queryset: Q, ids: Sequence[int]) -> Q:
        """As within_ids()."""
        return force_index(queryset.filter(pk__in=ids), "PRIMARY")

    def update_unlocked(self, queryset: QuerySet[Any], changes: Mapping[str, object]) -> int:
        """By a join with the SELECT that locks, which is run first.

        STRAIGHT_JOIN and LIMIT keep the optimizer from merging the SELECT into the UPDATE, and losing SKIP LOCKED.
        Without the index MariaDB scans a small table, and waits for the rows that the SELECT has skipped.
        """
        locking = self.lock_rows(queryset)
        connection = connections[locking.db]
        quote = connection.ops.quote_name
        table = quote(locking.model._meta.db_table)
        select, selected = locking.values_list("id")[:LIMIT_MAX].query.sql_with_params()

        key = f"{table}.{quote('id')} = unlocked.{quote('id')}"
        start = f"UPDATE ({select}) AS unlocked STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON {key} "

        def joined(execute: Callable[..., Parameter], sql: str, params: Sequence[object], *rest: object) -> Parameter:
            begin = f"UPDATE {table} "
            if not sql.startswith(begin):
                return execute(sql, params, *rest)
            return execute(start + sql.removeprefix(begin), (*selected, *params), *rest)

        with connection.execute_wrapper(joined):
            return int(locking.model._base_manager.using(locking.db).update(**changes))

    def delete_by_key(self, queryset: QuerySet[Any], keys: Sequence[int]) -> int:
        """By a join with the keys, each a look-up by the primary key.

        With `IN` the optimizer scans a small table in spite of FORCE INDEX, and waits for rows that others have locked.
        """
        listed = "JSON_TABLE('[{keys}]', '$[*]' COLUMNS (found BIGINT PATH '$')) AS listed"
        row = "{table} AS t FORCE INDEX (PRIMARY) ON t.{key} = listed.found"
        return delete_listed(queryset, keys, f"DELETE t FROM {listed} STRAIGHT_JOIN {row}")

    def loose_scan_sql(self, scan: LooseScan) -> str:
        """For GROUP BY the server reads the first entry of each group in the index; its recursions end after 1,000.

        With ids, where the values have a row or two on average, the server reads the rows one by one instead, and no
        hint forbids it; such a pass over all values reads no more than a few rows for each.
        """
        names = ", ".join(scan.columns)
        conditions = [*scan.where, *([f"{names} > %s"] if scan.after else [])]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        rows = f"{scan.table} FORCE INDEX ({scan.index_name}){where}"
        groups = f"SELECT {names}{', MIN(id)' if scan.with_id else ''} FROM {rows} GROUP BY {names}"
        return groups if scan.order else f"{groups} ORDER BY {names} LIMIT %s"

    def insert(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], rows: Sequence[Sequence[Parameter]]
    ) -> list[int]:
        """One INSERT; InnoDB gives the rows of one VALUES list consecutive ids, first one in LAST_INSERT_ID()."""
        sql, params = self._insert_sql(connection, table, columns, rows)
        with transaction.mark_for_rollback_on_error(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(sql, params)
            if len(rows) == 1:
                return [cursor.lastrowid]
            cursor.execute("SELECT LAST_INSERT_ID(), @@auto_increment_increment")
            first, step = cursor.fetchone()
            return list(range(first, first + step * len(rows), step))

    def insert_one(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], row: Sequence[Parameter], also: str
    ) -> tuple[int, Parameter]:
        """MySQL has no RETURNING: None for the column."""
        return self.insert(connection, table, columns, [row])[0], None

    def _on_conflict_sql(self, new: Upsert) -> str:
        """A duplicate primary key locks its record only, no gap, at any isolation level."""
        return f"ON DUPLICATE KEY UPDATE {new.changes.format(row='')}"
