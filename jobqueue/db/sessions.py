"""Sessions of the database: how long opening one took, whether one has ended, pools that are too small, idle limits.

Nothing is counted here: an observer adds to numbers in memory.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from jobqueue.db import fault_vendor, vendor
from jobqueue.db.dialect import ErrorKind, Problem
from jobqueue.db.statements import one_value


class Opening(NamedTuple):
    """One try to open a connection, or to take one from a pool."""

    seconds: float
    opened: bool
    refused: bool  # the server, the account or the pool had none left


Observer: TypeAlias = Callable[[Opening], None]
_observers: list[Observer] = []


def observe_openings(observer: Observer) -> None:
    """Call `observer` with each try in this process and its forks. It must not use the database, nor raise."""
    if observer not in _observers:
        _observers.append(observer)


def open_connection(connection: BaseDatabaseWrapper) -> None:
    """Open the connection if it is not, and report how long that took. Raises database errors."""
    if connection.connection is not None:
        return
    begun = time.monotonic()
    try:
        connection.ensure_connection()
    except Error as error:
        kind = fault_vendor(connection.alias).error_kind(error)
        report_opening(Opening(time.monotonic() - begun, opened=False, refused=kind is ErrorKind.NO_CONNECTION))
        raise
    report_opening(Opening(time.monotonic() - begun, opened=True, refused=False))


def report_opening(opening: Opening) -> None:
    for observer in _observers:
        observer(opening)


def close_if_ended(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that the server has ended while it was idle, without a round trip."""
    if connection.connection is not None and has_ended(connection.connection, connection):
        connection.close()


def has_ended(session: Any, connection: BaseDatabaseWrapper) -> bool:
    """Whether the server has ended `session`, the driver's of `connection`, while it was idle; without a round trip.

    Between statements the server sends nothing, so a readable socket means end of file or a farewell. Found out here,
    it costs a reconnection; found out by a write, it would be unknown whether that write happened.
    """
    fileno = getattr(session, "fileno", None)
    if fileno is None:
        return False
    try:
        waiting = select.poll()
        # psycopg raises when it has noticed the end itself.
        with connection.wrap_database_errors:
            waiting.register(fileno(), select.POLLIN)
        return bool(waiting.poll(0))
    except (OSError, ValueError, Error, AttributeError):
        return True


def ping(connection: BaseDatabaseWrapper) -> None:
    """Ask the server for an answer: one round trip. Raises django.db.Error where the session has ended."""
    one_value(connection, "SELECT 1")


#: what a process of a worker opens with the default of four threads
_LEAST_OF_A_CHILD = 9


def pool_problem(connection: BaseDatabaseWrapper, needed: int = _LEAST_OF_A_CHILD) -> Problem | None:
    """The problem if the pool of this process has fewer connections than the `needed` ones of a worker's process.

    Such a process does not fail: its jobs wait for each other, and nothing says so.
    """
    pool = connection.settings_dict["OPTIONS"].get("pool")
    if not pool:
        return None
    # Of psycopg_pool: without max_size a pool has min_size connections, and without that four.
    given = pool if isinstance(pool, Mapping) else {}
    size = given.get("max_size") or given.get("min_size", 4)
    if size >= needed:
        return None
    return Problem(
        "W038",
        f'OPTIONS["pool"] of the database {connection.alias!r} lets a process have {size} connections. A process of a '
        f"worker needs up to {needed}: its own, and one for each thread. Its jobs would wait for each other.",
        f'Set max_size of OPTIONS["pool"] to at least {needed}, lower --concurrency, or use no pool.',
    )


#: between two statements of a transaction of ours are milliseconds
IDLE_SECONDS = 5.0


class _Own(threading.local):
    """The alias of which the sessions of this thread are ours."""

    alias = ""


_own = _Own()


def limit_idle_transactions(using: str) -> None:
    """Have the server end a session to `using`, of those that this thread has and opens, that idles in a transaction.

    Of a process that is frozen (SIGSTOP, a paused machine, a host that was cut off) the locks would stay until it goes
    on. The thread must run no code of the project: a finish() block may take as long as it wants. Sessions of relays,
    which run subscribers, have the limit in their claims only. See docs/explanation/locking.md.
    """
    _own.alias = using
    connection_created.connect(_opened, dispatch_uid="jobqueue.idle_limit")
    connection = connections[using]
    if connection.connection is not None:
        _limit(connection)


def _opened(connection: BaseDatabaseWrapper, **_: Any) -> None:
    if connection.alias == _own.alias:
        _limit(connection)


def _limit(connection: BaseDatabaseWrapper) -> None:
    # A session without the limit works, and one that is lost already is noticed by the next statement.
    with suppress(Error):
        vendor(connection.alias).limit_idle_transactions(connection, IDLE_SECONDS)
