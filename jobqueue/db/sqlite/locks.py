"""The write lock of the whole database, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

from django.db import OperationalError, ProgrammingError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.locks import LockDialect, MutexTable, UniqueInsert, stale_snapshot
from jobqueue.db.sqlite.errors import error_name, is_stale
from jobqueue.exceptions import StaleSnapshot

_WAIT_MS_MAX = 2**31 - 1
CLOCK = "strftime('%%Y-%%m-%%d %%H:%%M:%%f'"
# Milliseconds, written with six digits so that text compares like time.
NOW_SQL = f"{CLOCK}, 'now') || '000'"


@contextmanager
def immediate(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """BEGIN IMMEDIATE: takes the write lock now and waits for it.

    A deferred transaction that reads first and writes later fails at once with "database is locked",
    without waiting.
    """
    connection.ensure_connection()
    wrapper: Any = connection
    own_mode = wrapper.transaction_mode
    wrapper.transaction_mode = own_mode or "IMMEDIATE"
    try:
        atomic = transaction.atomic(using=connection.alias)
        atomic.__enter__()
    finally:
        wrapper.transaction_mode = own_mode
    with ExitStack() as stack:
        stack.push(atomic)
        yield


class SQLiteLocks(LockDialect):
    """A mutex is the write lock, and a lock timeout is the busy timeout."""

    name = "SQLite"

    @contextmanager
    def timed_transaction(self, connection: BaseDatabaseWrapper, lock_timeout_seconds: float | None) -> Iterator[None]:
        with ExitStack() as stack:
            if lock_timeout_seconds is not None:
                cursor = stack.enter_context(connection.cursor())
                stack.enter_context(busy_wait(cursor, lock_timeout_seconds))
            stack.enter_context(immediate(connection))
            yield

    @contextmanager
    def _brief_transaction(self, connection: BaseDatabaseWrapper, lock_seconds: float) -> Iterator[None]:
        atomic = transaction.atomic(using=connection.alias)
        with connection.cursor() as cursor, busy_wait(cursor, lock_seconds, at_most=True), atomic:
            yield

    def is_lock_timeout(self, error: BaseException) -> bool:
        """SQLITE_BUSY, but not that a snapshot is too old to write."""
        return error_name(error).startswith("SQLITE_BUSY") and not is_stale(error)

    def rollback_cause(self, connection: BaseDatabaseWrapper, errors: Sequence[BaseException]) -> BaseException | None:
        """A full disk or a disk error ends the transaction."""
        session: Any = connection.connection
        return errors[-1] if errors and session is not None and not session.in_transaction else None

    def take_mutex(
        self, connection: BaseDatabaseWrapper, rows: MutexTable, key: str, timeout_seconds: float | None
    ) -> bool:
        """The write lock of the whole database, by a write to the key's row."""
        changes = f"{rows.takes} = {rows.takes} + 1, {rows.taken_at} = {NOW_SQL}"
        sql = f"INSERT INTO {connection.ops.quote_name(rows.table)} ({rows.key}, {rows.takes}, {rows.taken_at}) "
        sql += f"VALUES (%s, 1, {NOW_SQL}) ON CONFLICT ({rows.key}) DO UPDATE SET {changes}"
        with connection.cursor() as cursor, busy_wait(cursor, timeout_seconds):
            try:
                cursor.execute(sql, [key])
            except OperationalError as error:
                if is_stale(error):
                    raise stale_snapshot(key) from error
                if not self.is_lock_timeout(error):
                    raise
                return False
        return True

    def begin_within(
        self, connection: BaseDatabaseWrapper, block: AbstractContextManager[object], timeout_seconds: float
    ) -> bool:
        """There is one write lock, so another session that writes is waited for."""
        with connection.cursor() as cursor, busy_wait(cursor, timeout_seconds):
            try:
                block.__enter__()
            except OperationalError as error:
                if not error_name(error).startswith("SQLITE_BUSY"):
                    raise
                return False
        return True

    def insert_once(self, connection: BaseDatabaseWrapper, row: UniqueInsert, timeout_seconds: float) -> bool | None:
        """The write lock is taken here only in a caller's deferred transaction."""
        with connection.cursor() as cursor, busy_wait(cursor, timeout_seconds):
            try:
                cursor.execute(f"{row.sql} ON CONFLICT ({row.column}) DO NOTHING", row.params)
            except OperationalError as error:
                if is_stale(error):
                    raise StaleSnapshot(
                        "once(): this transaction read something before, and another session has written since, so it "
                        "cannot write any more. Nothing was written. Roll it back and begin again with once() before "
                        'the first read, or set OPTIONS["transaction_mode"] = "IMMEDIATE".'
                    ) from error
                if not self.is_lock_timeout(error):
                    raise
                return None
            return bool(cursor.rowcount == 1)


@contextmanager
def busy_wait(cursor: Any, seconds: float | None, *, at_most: bool = False) -> Iterator[None]:
    """Wait for the write lock for `seconds`, None = as long as the pragma can say; or `at_most` for so long."""
    cursor.execute("PRAGMA busy_timeout")
    (before,) = cursor.fetchone()
    limit = _WAIT_MS_MAX if seconds is None else round(seconds * 1000)
    cursor.execute(f"PRAGMA busy_timeout = {min(limit, before) if at_most else limit}")
    try:
        yield
    finally:
        # Not if the connection was closed meanwhile.
        with suppress(ProgrammingError):
            cursor.execute(f"PRAGMA busy_timeout = {before}")
