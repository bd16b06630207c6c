"""Clean the connections of a thread after a job or call, so that the next one finds no transaction, setting or lock."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db import fault_vendor
from jobqueue.db.sessions import has_ended
from jobqueue.db.time_limit import watched

_DOUBTED = "_jobqueue_doubted"


def clean_connections() -> None:
    """Drop open transactions, reset sessions that may be kept, and close all others.

    A session that was reset waits until this thread needs a connection again. The next job finds no queries of this
    one in connection.queries, which Django fills with DEBUG.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if connection.connection is None and not connection.in_atomic_block:
            continue  # unused since the last call, or closed by the job
        if _is_open(connection):
            _drop(connection)
        elif _may_keep(connection):
            _keep(connection)
        else:
            _close(connection)


def drop_open_transactions() -> list[str]:
    """Close the connections of this thread that are in a transaction, which rolls it back; returns their aliases.

    This includes transactions that raw SQL has begun and that Django does not know of.
    """
    dropped = []
    for connection in connections.all(initialized_only=True):
        if _is_open(connection) or _is_open_in_server(connection):
            _drop(connection)
            dropped.append(connection.alias)
    return dropped


def left_open() -> list[str]:
    """The aliases of this thread's connections in which a transaction has begun, so that what it wrote will be undone.

    On MySQL and MariaDB one round trip for each connection in use. A session that has ended is not one of them: what
    became of its transaction its next statement would say.
    """
    return [connection.alias for connection in connections.all(initialized_only=True) if _has_begun(connection)]


def _has_begun(connection: BaseDatabaseWrapper) -> bool:
    if connection.in_atomic_block:
        return True
    if connection.connection is None or has_ended(connection.connection, connection):
        return False
    with suppress(Exception), watched(connection):
        return fault_vendor(connection.alias).in_transaction(connection, begun=True)
    return False


def doubt_connections() -> None:
    """Have each connection of this thread checked before its next use: an exception was raised at an unknown line.

    A connection that was interrupted between a statement and its answer is replaced. None is kept for the next job.
    """
    connection: Any
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            connection.health_check_enabled, connection.health_check_done = True, False
            setattr(connection, _DOUBTED, True)


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    """Whether Django knows of an open transaction."""
    return connection.in_atomic_block or (connection.connection is not None and not connection.get_autocommit())


def _is_open_in_server(connection: BaseDatabaseWrapper) -> bool:
    if connection.connection is None:
        return False
    try:
        with watched(connection):
            return fault_vendor(connection.alias).in_transaction(connection)
    except Exception:
        return True  # the connection cannot be used any more


def _may_keep(connection: BaseDatabaseWrapper) -> bool:
    doubted = vars(connection).pop(_DOUBTED, False)
    if doubted or (connection.close_at is not None and time.monotonic() >= connection.close_at):
        return False
    try:
        # After the body, and so without its time limits.
        with watched(connection):
            return fault_vendor(connection.alias).reset_session(connection)
    except Exception:
        return False


def _keep(connection: Any) -> None:
    """Make `connection` look closed; at its next use it continues with the same session, as with a new one."""
    session, connection.connection = connection.connection, None
    # What jobqueue knows of the session: its isolation level and its locks.
    for name in [name for name in vars(connection) if name.startswith("_jobqueue_")]:
        delattr(connection, name)
    connection.get_new_connection = partial(_resume, connection, session, connection.close_at)


def _resume(connection: Any, session: Any, close_at: float | None, wanted: dict[str, Any]) -> Any:
    """get_new_connection() of a connection whose session was kept. connect() then applies Django's settings."""
    del connection.get_new_connection
    if (close_at is None or time.monotonic() < close_at) and _is_alive(connection, session):
        connection.close_at = close_at
        return session
    with suppress(Exception):
        session.close()
    return connection.get_new_connection(wanted)


def _is_alive(connection: BaseDatabaseWrapper, session: Any) -> bool:
    if has_ended(session, connection):
        return False
    if not connection.settings_dict["CONN_HEALTH_CHECKS"]:
        return True
    connection.connection = session
    try:
        return connection.is_usable()
    finally:
        connection.connection = None


def _close(connection: BaseDatabaseWrapper) -> None:
    try:
        connection.close()
    except Exception:
        _drop(connection)


def _drop(connection: BaseDatabaseWrapper) -> None:
    with suppress(Exception):
        if connection.connection is not None:
            connection.connection.close()
    del connections[connection.alias]
