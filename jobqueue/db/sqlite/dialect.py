"""SQLite 3.35 and later, the embedded default: one writer at a time, no row locks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from jobqueue.db.deletes import delete_listed
from jobqueue.db.diagnostics import Diagnostics
from jobqueue.db.dialect import Dialect, ErrorKind, Q
from jobqueue.db.indexed_table import bind, bind_part
from jobqueue.db.sqlite.interrupt import interrupted_after
from jobqueue.db.sqlite.locks import CLOCK, NOW_SQL, SQLiteLocks, busy_wait, immediate, is_stale
from jobqueue.db.sqlite.set_up import SQLiteSetUp


class SQLiteDiagnostics(Diagnostics):
    """There are no row locks: a transaction that writes locks the whole database."""

    name = "SQLite"


#: the least limit of waits for the one writer
BUSY_SECONDS = 4.0


class SQLite(Dialect):
    """One writer at a time: a transaction of ours takes the write lock, so a read followed by a write is one unit."""

    name = "SQLite"
    supported = True
    oldest = (3, 35, 0)  # it brought INSERT ... RETURNING
    upgrade = "Use a Python with a newer SQLite."
    claim_strategy = "sqlite-immediate"
    claim_form = "SELECT, then a guarded UPDATE, in a BEGIN IMMEDIATE transaction"
    single_writer = True
    locks = SQLiteLocks()
    diagnostics = SQLiteDiagnostics()
    set_up = SQLiteSetUp()
    transaction = staticmethod(immediate)
    column_types = {"tiny": "smallint", "instant": "datetime"}
    now_sql = NOW_SQL
    now_plus_sql = CLOCK.replace("%%", "%%%%") + ", 'now', (%(expressions)s) || ' seconds') || '000'"

    def walk_by(self, queryset: Q, index: str) -> Q:
        """Without statistics a range of the primary key looks cheaper to the planner than any index."""
        return bind(queryset, "INDEXED BY {}", index)

    def within_ids(self, queryset: Q, above: int, up_to: int) -> Q:
        """By the rowid: an index of another condition would lead to all rows that meet it."""
        return bind(queryset, "NOT INDEXED", "")

    def of_ids(self, queryset: Q, ids: Sequence[int]) -> Q:
        """By the rowid: CROSS JOIN is done in this order. IN may become a scan where the statistics know few rows.

        LIMIT keeps the other conditions out, for which SQLite may read the whole table first, into a Bloom filter.
        """
        text = ",".join(f"({int(one)})" for one in ids)
        join = f"(VALUES {text}) AS wanted CROSS JOIN {{table}} AS j ON j.{{key}} = wanted.column1"
        found = f"SELECT j.* FROM {join} LIMIT -1"
        return bind_part(queryset, found)

    def lock_rows(self, queryset: Q) -> Q:
        """Unchanged: the transaction has locked the whole database."""
        return queryset

    def delete_by_key(self, queryset: QuerySet[Any], keys: Sequence[int]) -> int:
        """In one statement, with the keys in its text."""
        return delete_listed(queryset, keys, "DELETE FROM {table} WHERE {key} IN ({keys})")

    def error_kind(self, error: BaseException) -> ErrorKind | None:
        """Busy, locked and full are transient; a file that cannot be opened or read counts as a lost connection."""
        if isinstance(error, OperationalError):
            text = str(error)
            if "locked" in text or "busy" in text:
                return ErrorKind.SERIALIZATION if is_stale(error) else ErrorKind.BUSY
            if "is full" in text:
                return ErrorKind.NO_ROOM
            if "unable to open" in text or "disk I/O" in text:
                return ErrorKind.LOST_CONNECTION
        return None

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

    def never_sent(self, error: BaseException) -> bool:
        """There is no network that can lose an answer."""
        return True

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

    def is_stopped(self, error: BaseException) -> bool:
        return isinstance(error, OperationalError) and "interrupted" in str(error)

    def in_transaction(self, connection: BaseDatabaseWrapper, *, begun: bool = False) -> bool:
        session: Any = connection.connection
        return bool(session.in_transaction)
