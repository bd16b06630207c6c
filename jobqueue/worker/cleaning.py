"""What a job or a call leaves in its thread's connections, and how the next one is kept from meeting it."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.cutting import watched
from jobqueue.db.retry import has_ended
from jobqueue.db.sessions import sessions_of

_DOUBTED = "_jobqueue_doubted"


def clean_connections() -> None:
    """The next job gets no transaction, setting or lock from this one, and no broken or expired session.

    A session that was used and may be kept is made as good as new, and waits until somebody needs a connection.
    """
    for connection in connections.all(initialized_only=True):
        if connection.connection is None and not connection.in_atomic_block:
            continue  # not used since the last time, or closed by the job
        if _is_open(connection):
            _drop(connection)
        elif _may_keep(connection):
            _keep(connection)
        else:
            _close(connection)


def drop_open_transactions() -> list[str]:
    """Close the connections of this thread that are inside a transaction, which undoes it; their aliases.

    Also of one that SQL has begun, and Django knows nothing of.
    """
    dropped = []
    for connection in connections.all(initialized_only=True):
        if _is_open(connection) or _is_open_in_server(connection):
            _drop(connection)
            dropped.append(connection.alias)
    return dropped


def doubt_connections() -> None:
    """Something was raised in this thread at any line: before each of its connections is used again, it is looked at.

    One that was interrupted between a statement and its answer is opened anew, and none is kept for the next job.
    """
    connection: Any
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            connection.health_check_enabled, connection.health_check_done = True, False
            setattr(connection, _DOUBTED, True)


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    """Whether it is inside a transaction as far as Django knows."""
    return connection.in_atomic_block or (connection.connection is not None and not connection.get_autocommit())


def _is_open_in_server(connection: BaseDatabaseWrapper) -> bool:
    if connection.connection is None:
        return False
    try:
        with watched(connection):
            return sessions_of(connection).in_transaction(connection)
    except Exception:
        return True  # it is of no use to anybody


def _may_keep(connection: BaseDatabaseWrapper) -> bool:
    doubted = vars(connection).pop(_DOUBTED, False)
    if doubted or (connection.close_at is not None and time.monotonic() >= connection.close_at):
        return False
    try:
        # The job has ended, and its time limits with it.
        with watched(connection):
            return sessions_of(connection).reset(connection)
    except Exception:
        return False


def _keep(connection: Any) -> None:
    """Let `connection` look closed, and begin with the same session, as with a new one, when it is used again."""
    session, connection.connection = connection.connection, None
    # What the product knows of the session: its isolation level, its locks.
    for name in [name for name in vars(connection) if name.startswith("_jobqueue_")]:
        delattr(connection, name)
    connection.get_new_connection = partial(_resume, connection, session, connection.close_at)


def _resume(connection: Any, session: Any, close_at: float | None, wanted: dict[str, Any]) -> Any:
    """get_new_connection() of a connection whose session was kept. connect() does the rest, with Django's settings."""
    del connection.get_new_connection
    if (close_at is None or time.monotonic() < close_at) and _is_alive(connection, session):
        connection.close_at = close_at
        return session
    with suppress(Exception):
        session.close()
    return connection.get_new_connection(wanted)


def _is_alive(connection: Any, session: Any) -> bool:
    if has_ended(session, connection):
        return False
    if not connection.settings_dict["CONN_HEALTH_CHECKS"]:
        return True
    connection.connection = session
    try:
        return bool(connection.is_usable())
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
