"""Drivers' sessions: notice that the server has ended one, ask it for a value, put back a variable of it."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def restored(connection: BaseDatabaseWrapper, restore: Callable[[], object]) -> Iterator[None]:
    """A block for which variables of the session were changed; at its end `restore` puts them back.

    A session that was opened in the block has its own variables and is left alone.
    """
    session = connection.connection
    try:
        yield
    finally:
        if connection.connection is session:
            try:
                restore()
            except Error:
                # The session is lost, or could keep what was set: a caller must not meet it. In a transaction the
                # caller notices a lost session, and the end of a failed transaction takes back what was set in it.
                if not connection.in_atomic_block:
                    connection.close()
