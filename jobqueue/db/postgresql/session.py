"""What the driver knows of a PostgreSQL session and of an error in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.sockets import one_value


def sqlstate(error: BaseException) -> str | None:
    """SQLSTATE of the driver's exception; None where the server did not answer."""
    found: str | None = getattr(error.__cause__, "sqlstate", None)
    return found


def is_pooled(connection: BaseDatabaseWrapper) -> bool:
    """A pooler such as PgBouncer makes up the number that the driver receives at the login."""
    connection.ensure_connection()
    session: Any = connection.connection
    return bool(one_value(connection, "SELECT pg_backend_pid()") != session.info.backend_pid)


@contextmanager
def limited(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """A block in a transaction, or savepoint, of its own whose statements are stopped after `seconds` each.

    SET LOCAL, so that no pooler gives the limit to another client; an error leaves the caller's transaction usable.
    """
    with transaction.atomic(using=connection.alias):
        before = one_value(connection, "SELECT current_setting('statement_timeout')")
        one_value(connection, _SET, [f"{max(1, round(1000 * seconds))}ms"])
        yield
        one_value(connection, _SET, [before])


_SET = "SELECT set_config('statement_timeout', %s, true)"
