"""MySQL 8.0 and later; most of it holds for MariaDB too."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.db.utils import DatabaseError

from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.diagnostics import Diagnostics
from jobqueue.db.dialect import Dialect, ErrorKind, Problem, Q
from jobqueue.db.lock_dialect import LockDialect
from jobqueue.db.mysql import hints, server
from jobqueue.db.mysql.diagnostics import MySQLDiagnostics
from jobqueue.db.mysql.locks import MySQLLocks
from jobqueue.db.mysql.server import (
    SESSION_LOST,
    collation,
    error_number,
    padding_problem,
    server_problems,
    write_refusal,
)
from jobqueue.db.mysql.session import limit_by_variables, limit_in_transactions, transactions_limited
from jobqueue.db.mysql.set_up import MySQLSetUp
from jobqueue.db.parameters import FOUR_BYTES, Hex, Parameter, readable
from jobqueue.db.set_up import SetUp
from jobqueue.db.sockets import one_value

# 1205 lock wait, 3572 NOWAIT; 1020 row changed (MariaDB), 3101 rolled back and 1180 commit refused by a cluster;
# 1317 KILL QUERY, 1969 and 3024 a limit of the statement's time.
# No room: 1021 disk, 1114 table, 1206 locks. It may come back, and what was to be written was not at fault.
# Too many connections: of the server, of the account by a setting, of the account by its own limits.
_FULL = {1040, 1203, 1226}
_TRANSIENT: dict[object, ErrorKind] = {
    1213: ErrorKind.DEADLOCK,
    **dict.fromkeys((1205, 3572), ErrorKind.LOCK_TIMEOUT),
    **dict.fromkeys((1020, 3101, 1180), ErrorKind.SERIALIZATION),
    **dict.fromkeys((1317, 1969, 3024), ErrorKind.CANCELED),
    **dict.fromkeys((1021, 1114, 1206), ErrorKind.NO_ROOM),
    **dict.fromkeys(_FULL, ErrorKind.NO_CONNECTION),
}
# Client: 2000-2027. Server: read-only, cluster without quorum.
_READ_ONLY = {1047, 1290, 1792, 1836, 3100}
_GONE = {1152, 1158, 1159, 1160, 1161, 3032} | _READ_ONLY
# Logins that are refused until the account is repaired: access denied, account locked, no such database.
_REFUSED = {1044, 1045, 1049, 1698, 3118, 3955, 4151}
_GONE |= _REFUSED | SESSION_LOST
_GONE |= {2000, 2002, 2003, 2004, 2005, 2014, 2026, 2027, 3168, 3169, 3170}


# What the driver writes with a backslash before it; JSON has few others than these.
_ESCAPED = "\\\"'\n\r\0\x1a"


class MySQL(Dialect):
    """MySQL through any driver that raises Django's exceptions with the server's error number first."""

    name = "MySQL"
    supported = True
    opening_option = "connect_timeout"
    oldest = (8, 0, 17)
    claim_strategy = "skip-locked"
    claim_form = "SELECT .. FOR UPDATE SKIP LOCKED, then a guarded UPDATE, at READ COMMITTED"
    locks: LockDialect = MySQLLocks()
    diagnostics: Diagnostics = MySQLDiagnostics()
    set_up: SetUp = MySQLSetUp()
    asks_for_transaction = True
    has_parentheses_in_union = True
    column_types = {
        "bigauto": "bigint UNSIGNED AUTO_INCREMENT",
        "bigauto_rel": "bigint UNSIGNED",
        "tiny": "tinyint",
        "text": "text",
        "token": "binary(16)",
        "key": "varbinary(64)",
        "instant": "datetime(6)",
    }
    unpadded_collation = "utf8mb4_0900_bin"
    # MariaDB has no FOR SHARE; both know this older form.
    shared_lock_sql = for_share_sql = "LOCK IN SHARE MODE"
    selected_instant_sql = "CAST(%(expressions)s AS CHAR)"
    now_sql = "UTC_TIMESTAMP(6)"
    now_plus_sql = "TIMESTAMPADD(MICROSECOND, ROUND((%(expressions)s) * 1000000), UTC_TIMESTAMP(6))"

    def json_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Parameter:
        """Characters of four bytes as escapes: see parameters.py."""
        return text if text.isascii() else FOUR_BYTES.sub(lambda found: json.dumps(found[0])[1:-1], text)

    def text_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Parameter:
        """Hexadecimal digits where it has characters of four bytes: see parameters.py."""
        return readable(text)

    def binary_parameter(self, connection: BaseDatabaseWrapper, value: bytes) -> Parameter:
        return Hex(bytes(value).hex())

    def max_statement_bytes(self, connection: BaseDatabaseWrapper) -> int | None:
        """max_allowed_packet of this session: the server cuts the connection of a client that sends more."""
        return int(one_value(connection, "SELECT @@SESSION.max_allowed_packet"))

    def statement_bytes(self, text: str) -> int:
        """With the backslashes that the driver adds."""
        return len(text.encode()) + sum(text.count(character) for character in _ESCAPED)

    in_transaction = staticmethod(server.in_transaction)
    reset_session = staticmethod(server.reset_session)
    # By key: with FORCE INDEX (PRIMARY).
    force_index = staticmethod(hints.force_index)
    update_by_key = staticmethod(hints.update_by_key)
    by_key_sql = staticmethod(hints.by_key_sql)
    delete_by_key = staticmethod(hints.delete_by_key)

    def within_ids(self, queryset: Q, above: int, up_to: int) -> Q:
        """By the primary key: another index would lead to all rows that meet its conditions, and to a sort."""
        return hints.force_index(queryset, "PRIMARY")

    def of_ids(self, queryset: Q, ids: Sequence[int]) -> Q:
        """As within_ids()."""
        return hints.force_index(queryset.filter(pk__in=ids), "PRIMARY")

    def update_unlocked(self, queryset: QuerySet[Any], changes: Mapping[str, object]) -> int:
        """By a join with the SELECT that locks, which is run first."""
        return hints.update_unlocked(self.lock_rows(queryset), changes)

    #: how long a session may idle within a transaction; on MySQL also outside of one
    idle_variable = "wait_timeout"

    @contextmanager
    def transaction(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """READ COMMITTED for this transaction only, whatever the session has or the caller has set for the next one."""
        inside = in_callers_transaction(connection)
        with transaction.atomic(using=connection.alias):
            # Each time: there is no notice when the session's level changes. Inside a transaction it is too late.
            if not inside:
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            yield

    @contextmanager
    def limited_transaction(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """By the variable of the session, in whole seconds. Costs one round trip in each session."""
        connection.ensure_connection()
        with transactions_limited(connection, self.idle_variable, seconds), self.transaction(connection):
            yield

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
        """MySQL has no RETURNING: the second value is None."""
        (key,) = self.insert(connection, table, columns, [row])
        return key, None

    def loose_scan_sql(self, table: str, columns: str, index: str, where: str = "") -> str:
        """For GROUP BY the server reads the first entry of each group in the index."""
        rows = f"{table} FORCE INDEX ({index})" + (f" WHERE {where}" if where else "")
        return f"SELECT {columns} FROM {rows} GROUP BY {columns} ORDER BY {columns} LIMIT %s"

    def distinct_sql(self, table: str, column: str, index: str) -> str:
        """By a loose scan, because a recursion of the server ends after 1,000 steps."""
        return self.loose_scan_sql(table, column, index)

    def distinct_after_sql(self, table: str, column: str, index: str) -> str:
        return self.loose_scan_sql(table, column, index, f"{column} > %s")

    def distinct_where_sql(
        self, table: str, column: str, index: str, conditions: Sequence[str], order: Sequence[str]
    ) -> str:
        """By a loose scan of the index, which seeks the wanted values in each group."""
        where = " AND ".join(conditions)
        return f"SELECT {column} FROM {table} FORCE INDEX ({index}) WHERE {where} GROUP BY {column}"

    def first_ids_after_sql(self, table: str, column: str, index: str) -> str:
        """By the same loose scan, which finds the lowest id on its way.

        Where the values have a row or two on average, the server reads the rows one by one instead, and no hint forbids
        it; such a pass over all values reads no more than a few rows for each.
        """
        return (
            f"SELECT {column}, MIN(id) FROM {table} FORCE INDEX ({index}) WHERE {column} > %s "
            f"GROUP BY {column} ORDER BY {column} LIMIT %s"
        )

    def on_conflict_sql(self, table: str, keys: str, changes: str) -> str:
        """A duplicate primary key locks its record only, no gap, at any isolation level."""
        return f"ON DUPLICATE KEY UPDATE {changes.format(row='')}"

    def limit_idle_transactions(self, connection: BaseDatabaseWrapper, seconds: float) -> None:
        """wait_timeout, in whole seconds, while a transaction is open."""
        limit_in_transactions(connection, seconds)

    @contextmanager
    def limit_reads(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """In milliseconds, SELECT only; other statements, such as SHOW, wait for the lock of a table for no longer."""
        milliseconds, waits = max(1, round(1000 * seconds)), max(1, math.ceil(seconds))
        with limit_by_variables(connection, {"max_execution_time": milliseconds, "lock_wait_timeout": waits}):
            yield

    @contextmanager
    def limit_waits(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """In whole seconds: for locks of tables, and of rows."""
        waits = max(1, math.ceil(seconds))
        with limit_by_variables(connection, {"lock_wait_timeout": waits, "innodb_lock_wait_timeout": waits}):
            yield

    def isolation(self, connection: BaseDatabaseWrapper) -> str:
        """From the server; MariaDB has the older name of the variable."""
        with connection.cursor() as cursor:
            cursor.execute("SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')")
            return str(cursor.fetchone()[1]).lower().replace("-", " ")

    def write_refusal(self, connection: BaseDatabaseWrapper) -> str:
        """From the server's variables; those with a right to it write although read_only is on."""
        return write_refusal(connection)

    def binary_collation(self, connection: BaseDatabaseWrapper) -> str | None:
        """The one that the server has: not every server that speaks MySQL's protocol has MySQL's collations."""
        return collation(connection, self.unpadded_collation)

    def next_id(self, connection: BaseDatabaseWrapper, table: str) -> int:
        """AUTO_INCREMENT of the table, which may be beyond its rows; information_schema may be a day late."""
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW CREATE TABLE {connection.ops.quote_name(table)}")
            found = re.search(r"\bAUTO_INCREMENT=(\d+)", str(cursor.fetchone()[1]))
        return int(found[1]) if found else 1

    def problems(self, connection: BaseDatabaseWrapper, table: str) -> Iterator[Problem]:
        """Version, engine of the table, isolation, statement-based replication, collations."""
        yield from super().problems(connection, table)
        yield from server_problems(connection, table)
        if self.binary_collation(connection) != self.unpadded_collation:
            yield padding_problem(self.unpadded_collation)

    def describe(self, connection: BaseDatabaseWrapper) -> str:
        """With what the server calls itself, where that is more than a number: others speak this protocol too."""
        plain = super().describe(connection)
        itself = str(connection.mysql_server_data["version"])  # type: ignore[attr-defined]
        return plain if plain.endswith(f" {itself}") else f"{plain} ({itself})"

    def error_kind(self, error: BaseException) -> ErrorKind | None:
        """By server or client error number; 2006 also means an oversize packet, which enqueue refuses beforehand."""
        if not isinstance(error, DatabaseError | InterfaceError):
            return None
        code = error_number(error)
        if code in _GONE or (isinstance(error, InterfaceError) and code in (0, None)):
            return ErrorKind.LOST_CONNECTION
        return _TRANSIENT.get(code)

    def never_sent(self, error: BaseException) -> bool:
        """2006 = the command could not be sent; 2013 = the answer was lost. No connection (2002, 2003): never sent.

        A server that takes no writes has answered: it has refused the statement, or rolled back at the commit.
        """
        return error_number(error) in {0, 2002, 2003, 2005, 2006, 4031} | _FULL | _REFUSED | _READ_ONLY

    def error_code(self, error: BaseException) -> str:
        if isinstance(error, (OperationalError, DatabaseError)):
            return str(error_number(error))
        return super().error_code(error)
