"""What the driver knows of a PostgreSQL session and of an error in it."""

from __future__ import annotations

from typing import Any

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
