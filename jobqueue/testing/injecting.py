"""Database errors at chosen statements, with the classes and codes that the real server uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NoReturn, get_args

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.base.validation import check_int
from jobqueue.db import vendor_of
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_test_case
from jobqueue.db.dialect import ErrorKind
from jobqueue.exceptions import InvalidValue

Kind = Literal["deadlock", "lock_timeout", "lost_connection"]
KINDS: tuple[Kind, ...] = get_args(Kind)


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
    error, happen = vendor_of(connection).simulated(connection, ErrorKind(kind))
    if really and happen is not None:
        happen()
    with connection.wrap_database_errors:
        raise error
