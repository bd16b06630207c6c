"""Database errors at chosen statements, with the classes and codes that the real server uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db import vendor_of
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_test_case
from jobqueue.db.dialect import Dialect
from jobqueue.db.mysql.features import MySQL
from jobqueue.db.postgresql.features import PostgreSQL
from jobqueue.db.sqlite.features import SQLite
from jobqueue.exceptions import InvalidValue, NotSupported
from jobqueue.validation import check_int

Kind = Literal["deadlock", "lock_timeout", "lost_connection"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DEADLOCK, LOCK_TIMEOUT, LOST_CONNECTION = KINDS

_MYSQL = {
    DEADLOCK: (1213, "Deadlock found when trying to get lock; try restarting transaction"),
    LOCK_TIMEOUT: (1205, "Lock wait timeout exceeded; try restarting transaction"),
    LOST_CONNECTION: (2013, "Lost connection to server during query"),
}
_POSTGRESQL = {DEADLOCK: ("40P01", "deadlock detected"), LOCK_TIMEOUT: ("55P03", "canceling statement: lock timeout")}
# SQLite has neither deadlocks nor sessions; the nearest errors are a busy file and an unreadable file.
_BUSY = ("SQLITE_BUSY", 5, "database is locked")
_SQLITE = {DEADLOCK: _BUSY, LOCK_TIMEOUT: _BUSY, LOST_CONNECTION: ("SQLITE_IOERR", 10, "disk I/O error")}


@dataclass
class Injected:
    """The statements that failed, in order."""

    statements: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of statements that failed."""
        return len(self.statements)


@contextmanager
def inject(
    kind: Kind,
    *,
    at: int | str | Callable[[str], bool] = 1,
    times: int | None = 1,
    answer_lost: bool = False,
    using: str | None = None,
) -> Iterator[Injected]:
    """Within the block, chosen statements of this thread's connection raise OperationalError, as from the server.

    kind: "deadlock" (1213, 40P01), "lock_timeout" (1205, 55P03) or "lost_connection" (2013); on SQLite "database is
    locked" and "disk I/O error". `at` selects statements: the number of the first one in the block, a regular
    expression that is searched in the SQL, or a function of the SQL. `times` is how many of them fail, None = all. They
    are not executed, unless answer_lost is true: then they are executed and fail afterwards. Outside a test case's
    transaction a deadlock also rolls back the open transaction, and a lost connection is closed. Yields an Injected
    with `count` and `statements`; check them, because nothing fails if no statement matches.
    """
    if kind not in KINDS:
        raise InvalidValue(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}.")
    if times is not None:
        check_int(times, "times", 1)
    fits = _fits(at)
    connection = connections[alias_of(using)]
    injected = Injected()

    def execute_or_fail(execute: Callable[..., object], sql: str, *rest: object) -> object:
        if not fits(sql) or (times is not None and injected.count >= times):
            return execute(sql, *rest)
        injected.statements.append(sql)
        if answer_lost:
            execute(sql, *rest)
        _fail(connection, kind, really=not in_test_case(connection))

    with connection.execute_wrapper(execute_or_fail):
        yield injected


def _fits(at: int | str | Callable[[str], bool]) -> Callable[[str], bool]:
    if callable(at):
        return at
    if isinstance(at, str):
        pattern = re.compile(at, re.IGNORECASE)
        return lambda sql: pattern.search(sql) is not None
    number = check_int(at, "at", 1)
    seen = 0

    def is_its_turn(sql: str) -> bool:
        nonlocal seen
        seen += 1
        return seen >= number

    return is_its_turn


def _fail(connection: BaseDatabaseWrapper, kind: Kind, *, really: bool) -> NoReturn:
    """Raise what Django raises for an error of this `kind`, with the driver's error as its cause.

    `really`: also do to the open transaction and the connection what the server does to them.
    """
    found = vendor_of(connection)
    error, happen = _error(connection, found, kind)
    if really:
        happen()
    with connection.wrap_database_errors:
        raise error


def _error(connection: Any, found: Dialect, kind: Kind) -> tuple[BaseException, Callable[[], object]]:
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
    raise NotSupported(f"jobqueue.testing cannot simulate {found.name}; use a supported database.")


def _nothing() -> None:
    """Leave the transaction and the connection as they are."""


def _try(connection: Any, statement: str) -> None:
    """Run a statement that fails on purpose, without Django noticing."""
    with suppress(connection.Database.Error):
        connection.connection.cursor().execute(statement)
