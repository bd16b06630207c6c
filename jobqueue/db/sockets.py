"""Drivers' sessions: notice that the server has ended one, ask whether it answers, ask it for a value."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.parameters import Parameter


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


def one_value(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Parameter] | None = None) -> Any:
    """The first column of the first row of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchone()[0]
