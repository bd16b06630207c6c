"""How long threads of this process wait for a connection to the database, and how often they get none.

Nothing is counted here: an observer adds to numbers in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db import fault_vendor
from jobqueue.db.dialect import ErrorKind, Problem


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


def report_opening(opening: Opening) -> None:
    """Tell all observers."""
    for observer in _observers:
        observer(opening)
