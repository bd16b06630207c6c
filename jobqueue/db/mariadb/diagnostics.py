"""Held locks, lock waits and deadlocks on MariaDB, from information_schema and SHOW ENGINE INNODB STATUS.

MariaDB has no data_locks, and information_schema.INNODB_LOCKS lists only locks that a session waits for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import Error, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.diagnostics import HeldLocks, LockWait, RowHolder, lock_wait, without_values
from jobqueue.db.mysql.diagnostics import (
    NO_PROCESS_RIGHT,
    QUOTES,
    RECORD_LOCKS,
    MonitorReader,
    MySQLDiagnostics,
    ask,
    record_of,
)
from jobqueue.db.statements import marks
from jobqueue.exceptions import NotSupported

# Instants of INNODB_TRX have the zone of the server's host and no fractions, so they are only compared to each other.
# Led by the waits, as on MySQL.
_WAITS = """
SELECT w.requested_lock_id, rt.trx_mysql_thread_id, bt.trx_mysql_thread_id, COALESCE(p.time_ms, 0) / 1000,
  r.lock_table, r.lock_index, r.lock_mode, r.lock_data, rt.trx_query, bt.trx_query,
  TIMESTAMPDIFF(SECOND, bt.trx_started, rt.trx_wait_started), DATABASE()
FROM information_schema.innodb_lock_waits w
STRAIGHT_JOIN information_schema.innodb_locks r ON r.lock_id = w.requested_lock_id
STRAIGHT_JOIN information_schema.innodb_trx rt ON rt.trx_id = w.requesting_trx_id
STRAIGHT_JOIN information_schema.innodb_trx bt ON bt.trx_id = w.blocking_trx_id
LEFT JOIN information_schema.processlist p ON p.id = rt.trx_mysql_thread_id
ORDER BY 4 DESC LIMIT %s
"""
# Without the plugin metadata_lock_info the server names neither the table nor the holder.
_TABLE_WAITS = """
SELECT id, time_ms / 1000, info FROM information_schema.processlist
WHERE state LIKE 'Waiting for table %%lock' AND db = DATABASE() ORDER BY 2 DESC LIMIT %s
"""
# As db.mysql.diagnostics finds old transactions.
_HAVE_LOCKS = """
SELECT trx_mysql_thread_id,
  TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), UTC_TIMESTAMP()) AS age, trx_query
FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id NOT IN (0, CONNECTION_ID()) AND (trx_rows_locked > 0 OR trx_rows_modified > 0)
HAVING age >= %s ORDER BY age DESC LIMIT 10
"""
_ISOLATION = (
    "SELECT trx_isolation_level FROM information_schema.innodb_trx "
    "WHERE trx_mysql_thread_id = CONNECTION_ID() AND trx_id = %s"
)
_TRIES = 5
_NAME = re.compile(r"`((?:[^`]|``)*)`\.`((?:[^`]|``)*)`")


class MariaDBDiagnostics(MySQLDiagnostics):
    """MariaDB 10.6 and later: its views need PROCESS, and performance_schema is off by default."""

    def held(self, connection: BaseDatabaseWrapper) -> HeldLocks:
        """This session's locks. Raises NotSupported without PROCESS, and without SUPER if the locks' output is off."""
        with connection.cursor() as cursor:
            try:
                cursor.execute("SELECT CONNECTION_ID(), @@tx_isolation")
                session, level = cursor.fetchone()
                part, cut = _status(cursor, int(session))
                level = (_isolation(cursor, part[0].partition(",")[0]) if part else None) or level
            except Error as error:
                raise NotSupported(
                    f"this account may not ask InnoDB for its locks ({error}). Nothing was changed; GRANT PROCESS to "
                    "it, and either SUPER or, once and for all, SET GLOBAL innodb_status_output_locks=ON."
                ) from error
            locks = list(MonitorReader(cursor).locks(part))
        complete = not cut and sum(bool(lock.index) for lock in locks) >= _counted(part)
        return HeldLocks(frozenset(locks), str(level).lower().replace("-", " "), complete)

    def may_lock(self, connection: BaseDatabaseWrapper, session: int, table: str) -> bool:
        # The server lists only locks for which others wait.
        return True

    def row_holders(
        self, connection: BaseDatabaseWrapper, rows: Mapping[str, tuple[str, Sequence[int | str]]], seconds: float
    ) -> list[RowHolder]:
        """A look shows whether a row is locked; each old transaction with locks may be the one.

        In a caller's transaction nothing is found: the lock of the look would stay.
        """
        old = ask(connection, _HAVE_LOCKS, [seconds], NO_PROCESS_RIGHT)
        if not old or in_callers_transaction(connection):
            return []
        return [
            RowHolder(
                table, key, int(session), float(age), without_values(statement, QUOTES), not statement,
                surely=len(old) == 1,
            )
            for table, (column, values) in rows.items()
            for key in _locked_keys(connection, table, column, values)
            for session, age, statement in old
        ]  # fmt: skip

    def table_holders(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[RowHolder]:
        # Without the plugin metadata_lock_info nobody knows.
        return []

    def waits(self, connection: BaseDatabaseWrapper, limit: int = 20) -> list[LockWait]:
        """information_schema.INNODB_LOCK_WAITS.

        The server makes this list anew only if nobody has read it for a tenth of a second, so what is read more often
        than that stays as it was.
        """
        sql = f"SET STATEMENT max_statement_time=2 FOR {_WAITS}"
        rows = [_wait(*row) for row in ask(connection, sql, [limit], NO_PROCESS_RIGHT)]
        tables = ask(connection, f"SET STATEMENT max_statement_time=2 FOR {_TABLE_WAITS}", [limit], NO_PROCESS_RIGHT)
        rows += [_table_wait(int(session), *facts) for session, *facts in tables]
        return sorted(rows, key=lambda wait: -wait.seconds)[:limit]


def _locked_keys(connection: BaseDatabaseWrapper, table: str, column: str, values: Sequence[int | str]) -> list[str]:
    """Those of which others keep a row locked. The look needs no right to write, and its locks end with it."""
    quote = connection.ops.quote_name
    rows = (
        f"SELECT {quote(column)} FROM {quote(table)} FORCE INDEX (PRIMARY) WHERE {quote(column)} IN ({marks(values)})"
    )
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute(rows, list(values))
        there = Counter(str(key) for (key,) in cursor.fetchall())
        cursor.execute(f"{rows} LOCK IN SHARE MODE SKIP LOCKED", list(values))
        free = Counter(str(key) for (key,) in cursor.fetchall())
    return sorted(there - free)


def _wait(identity: str, waiting: int, blocking: int, seconds: Any, *rest: Any) -> LockWait:
    full, index, mode, key, waits_in, blocks_in, before, database = rest
    found = _NAME.fullmatch(full)
    table = full if found is None else found[2] if found[1] == database else f"{found[1]}.{found[2]}"
    age = None if before is None else float(before) + float(seconds)
    facts = (seconds, waits_in, blocks_in, blocks_in is None, age)
    name, sessions = f"{identity} {waiting} {blocking}", (waiting, blocking)
    return lock_wait(name, sessions, record_of(table, index, key), mode, *facts, quotes=QUOTES)


def _table_wait(session: int, seconds: Any, statement: str | None) -> LockWait:
    facts = (seconds, statement, None, False, None)
    return lock_wait(f"table {session}", (session, 0), "table", "metadata", *facts, quotes=QUOTES)


def _status(cursor: Any, session: int) -> tuple[list[str], bool]:
    """The lines of the session's transaction; asked again if another session has just switched off their lists."""
    part: list[str] = []
    cut = False
    for _ in range(_TRIES):
        with _output_locks(cursor):
            cursor.execute("SHOW ENGINE INNODB STATUS")
            row = cursor.fetchone()
            part, cut = own_part(str(row[2] or "") if row else "", session)
        if cut or not _counted(part) or any(RECORD_LOCKS.match(line) for line in part):
            break
    return part, cut


def own_part(text: str, session: int) -> tuple[list[str], bool]:
    """The lines of the session's transaction, and whether they were cut short. Empty: it holds no lock."""
    for part in re.split(r"^---TRANSACTION ", text, flags=re.MULTILINE)[1:]:
        if re.search(rf"^MariaDB thread id {session},", part, re.MULTILINE):
            lines = re.split(r"^(?:--------|\*\*\*)", part, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
            return lines, "SUPPRESSING FURTHER PRINTS" in part or "truncated" in part
    return [], "truncated" in text


def _counted(lines: list[str]) -> int:
    """How many record locks the transaction has by its own count."""
    found = re.search(r"(\d+) row lock\(s\)", "\n".join(lines[:8]))
    return int(found[1]) if found else 0


def _isolation(cursor: Any, transaction_id: str) -> str | None:
    """Of the transaction. The server refreshes that view only if it was not read for 100 ms."""
    for seconds in (0, 0.11):
        cursor.execute("SELECT SLEEP(%s)", [seconds])
        cursor.execute(_ISOLATION, [transaction_id])
        row = cursor.fetchone()
        if row is not None:
            return str(row[0])
    return None


@contextmanager
def _output_locks(cursor: Any) -> Iterator[None]:
    """The status with its locks: a switch of the whole server, put back at once."""
    cursor.execute("SELECT @@GLOBAL.innodb_status_output_locks")
    if cursor.fetchone()[0]:
        yield
        return
    cursor.execute("SET GLOBAL innodb_status_output_locks = ON")
    try:
        yield
    finally:
        cursor.execute("SET GLOBAL innodb_status_output_locks = OFF")
