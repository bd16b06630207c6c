"""A simulated clock and simulated server errors for jobqueue.testing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db import vendor_of
from jobqueue.db.dialect import Dialect
from jobqueue.db.mysql.dialect import MySQL
from jobqueue.db.postgresql.dialect import PostgreSQL
from jobqueue.db.sqlite.dialect import SQLite
from jobqueue.exceptions import NotSupported

DEADLOCK, LOCK_TIMEOUT, LOST_CONNECTION = "deadlock", "lock_timeout", "lost_connection"
KINDS = (DEADLOCK, LOCK_TIMEOUT, LOST_CONNECTION)

_MYSQL = {
    DEADLOCK: (1213, "Deadlock found when trying to get lock; try restarting transaction"),
    LOCK_TIMEOUT: (1205, "Lock wait timeout exceeded; try restarting transaction"),
    LOST_CONNECTION: (2013, "Lost connection to server during query"),
}
_POSTGRESQL = {DEADLOCK: ("40P01", "deadlock detected"), LOCK_TIMEOUT: ("55P03", "canceling statement: lock timeout")}
# SQLite has neither deadlocks nor sessions; the nearest errors are a busy file and an unreadable file.
_BUSY = ("SQLITE_BUSY", 5, "database is locked")
_SQLITE = {DEADLOCK: _BUSY, LOCK_TIMEOUT: _BUSY, LOST_CONNECTION: ("SQLITE_IOERR", 10, "disk I/O error")}


def later(connection: BaseDatabaseWrapper, sql: str, seconds: float) -> str:
    """`sql` with UtcNow moved `seconds` into the future. Defaults that are stored in the table are not moved."""
    found = vendor_of(connection)
    if isinstance(found, SQLite):
        # A modifier of strftime; several of them add up.
        return sql.replace("'now'", f"'now', '{seconds:+.6f} seconds'")
    if isinstance(found, MySQL):
        return sql.replace(found.now_sql, f"({found.now_sql} + INTERVAL {round(seconds * 1e6)} MICROSECOND)")
    if isinstance(found, PostgreSQL):
        return sql.replace(found.now_sql, f"({found.now_sql} + make_interval(secs => {seconds:.6f}))")
    raise _unknown(found)


def fail(connection: BaseDatabaseWrapper, kind: str, *, really: bool) -> NoReturn:
    """Raise what Django raises for an error of this `kind`, with the driver's error as its cause.

    `really`: also do to the open transaction and the connection what the server does to them.
    """
    found = vendor_of(connection)
    error, happen = _error(connection, found, kind)
    if really:
        happen()
    with connection.wrap_database_errors:
        raise error


def _error(connection: Any, found: Dialect, kind: str) -> tuple[BaseException, Callable[[], object]]:
    driver, session = connection.Database, connection.connection
    if isinstance(found, MySQL):
        # A deadlock rolls the whole transaction back, a lock wait only the statement.
        after = {DEADLOCK: session.rollback, LOST_CONNECTION: lambda: _try(connection, "KILL CONNECTION_ID()")}
        return driver.OperationalError(*_MYSQL[kind]), after.get(kind, _nothing)
    if isinstance(found, PostgreSQL):
        if kind == LOST_CONNECTION:
            end = "SELECT pg_terminate_backend(pg_backend_pid())"
            return driver.OperationalError("server closed the connection unexpectedly"), lambda: _try(connection, end)
        state, text = _POSTGRESQL[kind]
        # Any error makes the server refuse the rest of the transaction.
        return driver.errors.lookup(state)(text), lambda: _try(connection, "SELECT 1/0")
    if isinstance(found, SQLite):
        name, code, text = _SQLITE[kind]
        error = driver.OperationalError(text)
        error.sqlite_errorname, error.sqlite_errorcode = name, code
        return error, session.rollback if kind == LOST_CONNECTION else _nothing
    raise _unknown(found)


def _nothing() -> None:
    """Leave the transaction and the connection as they are."""


def _try(connection: Any, statement: str) -> None:
    """Run a statement that fails on purpose, without Django noticing."""
    with suppress(connection.Database.Error):
        connection.connection.cursor().execute(statement)


def _unknown(found: Dialect) -> NotSupported:
    return NotSupported(f"jobqueue.testing cannot simulate {found.name}; use a supported database.")
