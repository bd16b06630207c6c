"""The limit of time for a session's reads, by a variable that MySQL and MariaDB name differently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.sockets import one_value


@contextmanager
def limit_by_variable(connection: BaseDatabaseWrapper, variable: str, value: float) -> Iterator[None]:
    """A block in which the session's `variable` is at most `value`; 0 means no limit."""
    before = float(one_value(connection, f"SELECT @@SESSION.{variable}"))
    _set(connection, variable, min(before, value) if before else value)
    try:
        yield
    finally:
        try:
            _set(connection, variable, before)
        except Error:
            # The session is lost, or could keep the limit: a caller must not meet it. In a transaction the caller
            # notices by itself that the session is lost.
            if not connection.in_atomic_block:
                connection.close()


def _set(connection: BaseDatabaseWrapper, variable: str, value: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {variable} = {value:.6g}")
