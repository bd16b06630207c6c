"""How long a statement may be: MySQL and MariaDB cut the connection of who sends a longer one."""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper

# What the driver writes with a backslash before it; JSON has few others than these.
_ESCAPED = "\\\"'\n\r\0\x1a"


def packet_bytes(connection: BaseDatabaseWrapper) -> int | None:
    """max_allowed_packet of this session; None where statements have no such limit."""
    if connection.vendor != "mysql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.max_allowed_packet")
        return int(cursor.fetchone()[0])


def sent_bytes(text: str) -> int:
    """How many bytes of a statement a text takes."""
    return len(text.encode()) + sum(text.count(character) for character in _ESCAPED)
