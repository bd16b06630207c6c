"""How long threads of this process wait for a connection to the database, and how often they get none.

Nothing is counted here: an observer adds to numbers in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db import fault_vendor
from jobqueue.db.dialect import ErrorKind


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
        _report(Opening(time.monotonic() - begun, opened=False, refused=kind is ErrorKind.NO_CONNECTION))
        raise
    _report(Opening(time.monotonic() - begun, opened=True, refused=False))


def _report(opening: Opening) -> None:
    for observer in _observers:
        observer(opening)
