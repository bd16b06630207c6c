"""What a job or a call leaves in its thread's connections, and how the next one is kept from meeting it."""

from __future__ import annotations

from contextlib import suppress

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


def clean_connections() -> None:
    """The next job gets no open transaction and no broken or expired connection from this one."""
    for connection in connections.all(initialized_only=True):
        if not _drop_if_open(connection):
            connection.close_if_unusable_or_obsolete()


def drop_open_transactions() -> list[str]:
    """Close the connections of this thread that are inside a transaction, which undoes it; their aliases."""
    return [connection.alias for connection in connections.all(initialized_only=True) if _drop_if_open(connection)]


def _drop_if_open(connection: BaseDatabaseWrapper) -> bool:
    if not (connection.in_atomic_block or (connection.connection is not None and not connection.get_autocommit())):
        return False
    with suppress(Exception):
        if connection.connection is not None:
            connection.connection.close()
    del connections[connection.alias]
    return True
