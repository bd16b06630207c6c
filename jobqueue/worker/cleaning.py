"""What a job or a call leaves in its thread's connections, and how the next one is kept from meeting it."""

from __future__ import annotations

from contextlib import suppress

from django.db import close_old_connections, connections


def clean_connections() -> None:
    """The next job gets no open transaction and no broken or expired connection from this one."""
    drop_open_transactions()
    close_old_connections()


def drop_open_transactions() -> list[str]:
    """Close the connections of this thread that are inside a transaction, which undoes it; their aliases."""
    dropped = []
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block or (connection.connection is not None and not connection.get_autocommit()):
            alias = connection.alias
            with suppress(Exception):
                if connection.connection is not None:
                    connection.connection.close()
            del connections[alias]
            dropped.append(alias)
    return dropped
