"""SQLite 3.35 and later."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.dialect import Plan, Problem, SettingRule, TableIndex
from jobqueue.db.sqlite.diagnostics import SQLiteDiagnostics
from jobqueue.db.sqlite.errors import SQLiteErrors
from jobqueue.db.sqlite.locks import CLOCK, NOW_SQL, SQLiteLocks, busy_wait, immediate
from jobqueue.db.sqlite.statements import SQLiteStatements
from jobqueue.db.statements import Parameter, marks, one_value

#: the least limit of waits for the one writer
BUSY_SECONDS = 4.0


_PAGE = "docs/howto/sqlite.md"
_RULES = (
    SettingRule(
        "journal_mode", lambda value: value in ("wal", "memory"), "no_wal",
        "readers and the writer block each other.",
        f'Set OPTIONS["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL". See {_PAGE}.',
    ),
    SettingRule(
        "busy_timeout", lambda value: int(value) >= 1000, "busy_timeout",
        "a write fails with 'database is locked' when another one takes longer than so many milliseconds.",
        f'Set OPTIONS["timeout"] = 20 (seconds). See {_PAGE}.',
    ),
)  # fmt: skip


class SQLite(SQLiteStatements, SQLiteErrors):
    """One writer at a time: a transaction of ours takes the write lock, so a read followed by a write is one unit."""

    name = "SQLite"
    supported = True
    page = _PAGE
    rules = _RULES
    oldest = (3, 35)  # it brought INSERT ... RETURNING
    upgrade = "Use a Python with a newer SQLite."
    claim_strategy = "sqlite-immediate"
    claim_form = "SELECT, then a guarded UPDATE, in a BEGIN IMMEDIATE transaction"
    single_writer = True
    locks = SQLiteLocks()
    diagnostics = SQLiteDiagnostics()
    transaction = staticmethod(immediate)
    column_types = {"tiny": "smallint", "instant": "datetime"}
    now_sql = NOW_SQL
    now_plus_sql = CLOCK.replace("%%", "%%%%") + ", 'now', (%(expressions)s) || ' seconds') || '000'"

    def later_sql(self, sql: str, seconds: float) -> str:
        """By a modifier of strftime; several of them add up."""
        return sql.replace("'now'", f"'now', '{seconds:+.6f} seconds'")

    def write_refusal(self, connection: BaseDatabaseWrapper) -> str:
        """The session's query_only, a file opened with mode=ro, or one that this process may not write."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT q.query_only, d.file FROM pragma_query_only q, pragma_database_list d WHERE d.seq = 0"
            )
            query_only, path = cursor.fetchone()
        if query_only:
            return "query_only"
        if "mode=ro" in str(connection.settings_dict["NAME"]):
            return "mode=ro"
        return "file permissions" if path and not os.access(path, os.W_OK) else ""

    @contextmanager
    def limit_reads(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """A thread interrupts what runs when the time is over."""
        connection.ensure_connection()
        with interrupted_after(connection.connection, seconds):
            yield

    @contextmanager
    def limit_waits(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """By the busy timeout, which stays at BUSY_SECONDS or less: of those who wait, some wait long behind others."""
        with connection.cursor() as cursor, busy_wait(cursor, max(seconds, BUSY_SECONDS), at_most=True):
            yield

    def in_transaction(self, connection: BaseDatabaseWrapper, *, begun: bool = False) -> bool:
        session: Any = connection.connection
        return bool(session.in_transaction)

    def plan(self, connection: BaseDatabaseWrapper, table: str, sql: str, params: Sequence[Parameter]) -> Plan | None:
        """Read EXPLAIN QUERY PLAN."""
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            lines = [str(row[-1]) for row in cursor.fetchall()]
        return Plan(
            "\n".join(lines),
            scans=any(line.startswith("SCAN") and table in line for line in lines),
            sorts=any("TEMP B-TREE" in line for line in lines),
        )

    def indexes(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[TableIndex]:
        """From the pragmas. SQLite forgets the names of unique constraints."""
        found: dict[tuple[str, str], list[str]] = {}
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT m.name, l.name, c.name FROM sqlite_master m, pragma_index_list(m.name) l, "
                f"pragma_index_info(l.name) c WHERE m.type = 'table' AND m.name IN ({marks(tables)}) "
                "ORDER BY m.name, l.name, c.seqno",
                list(tables),
            )
            for table, name, column in cursor.fetchall():
                found.setdefault((str(table), str(name)), []).append(str(column))
        return [
            TableIndex(table, "" if name.startswith("sqlite_autoindex_") else name, tuple(columns))
            for (table, name), columns in found.items()
        ]

    def analyze_sql(self, table: str) -> str:
        """Of all tables."""
        return "ANALYZE"

    def options_problems(self, alias: str, options: Mapping[str, Any], file: str) -> Iterator[Problem]:
        """W010 without IMMEDIATE transactions, W011 without a write-ahead log; for a file only."""
        if ":memory:" in file:
            return
        if str(options.get("transaction_mode") or "").upper() not in ("IMMEDIATE", "EXCLUSIVE"):
            yield Problem(
                "W010",
                f"The queue is on SQLite ({alias!r}) with deferred transactions: enqueue inside atomic() can fail "
                'immediately with "database is locked".',
                f'Set OPTIONS["transaction_mode"] = "IMMEDIATE" and a timeout of a few seconds: {self.page}',
            )
        if "wal" not in str(options.get("init_command") or "").lower():
            yield Problem(
                "W011",
                f"The queue is on SQLite ({alias!r}) without write-ahead log: readers and the writer block each other.",
                'Set OPTIONS["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;".',
            )

    def settings(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """The pragmas journal_mode and busy_timeout (milliseconds), and "file", "" for a database in memory."""
        found = {name: str(one_value(connection, f"PRAGMA {name}")) for name in ("journal_mode", "busy_timeout")}
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA database_list")
            files = {str(name): str(file or "") for _, name, file in cursor.fetchall()}
        return {**found, "file": files.get("main", "")}


@contextmanager
def interrupted_after(session: Any, seconds: float) -> Iterator[None]:
    """A block in which the statement of `session`, a driver's connection, that runs after `seconds` is interrupted."""
    ending, over = threading.Lock(), threading.Event()

    def interrupt() -> None:
        # With the lock: a statement behind the block must not be interrupted.
        with ending:
            if not over.is_set():
                session.interrupt()

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with ending:
            over.set()
        timer.cancel()
