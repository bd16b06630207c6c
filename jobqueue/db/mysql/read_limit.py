"""Limits of time for a session's statements, by variables of which MySQL and MariaDB name some differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper


@contextmanager
def limit_by_variables(connection: BaseDatabaseWrapper, limits: Mapping[str, float]) -> Iterator[None]:
    """A block in which these variables of the session are at most so much; one that is 0 means no limit."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(f'@@SESSION.{name}' for name in limits)}")
        before = dict(zip(limits, map(float, cursor.fetchone()), strict=True))
    _set(connection, {name: min(before[name], limit) if before[name] else limit for name, limit in limits.items()})
    session = connection.connection
    try:
        yield
    finally:
        # A session that was opened in the block has its own limits.
        if connection.connection is session:
            _restore(connection, before)


def _restore(connection: BaseDatabaseWrapper, before: Mapping[str, float]) -> None:
    try:
        _set(connection, before)
    except Error:
        # The session is lost, or could keep the limit: a caller must not meet it. In a transaction the caller
        # notices by itself that the session is lost.
        if not connection.in_atomic_block:
            connection.close()


def _set(connection: BaseDatabaseWrapper, values: Mapping[str, float]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET " + ", ".join(f"SESSION {name} = {value:.15g}" for name, value in values.items()))
