"""How long a statement may be: MySQL and MariaDB cut the connection of who sends a longer one."""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.conf import Settings

# Bulk inserts and acks put as many texts into one statement.
_STATEMENT_BYTES = 4 * 1024 * 1024
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


def packet_problem(connection: BaseDatabaseWrapper, settings: Settings) -> tuple[str, str, str] | None:
    """What is wrong if the longest payload or result cannot be sent: (check id, text, hint)."""
    limit = packet_bytes(connection)
    sizes = {"MAX_PAYLOAD_BYTES": settings.max_payload_bytes, "MAX_RESULT_BYTES": settings.max_result_bytes}
    name = max(sizes, key=sizes.__getitem__)
    # JSON of nothing but quotes is twice as long when it is sent.
    needed = 2 * sizes[name] + _STATEMENT_BYTES
    if limit is None or limit >= needed:
        return None
    return (
        "W027",
        f"max_allowed_packet is {limit}: a statement with {name} = {sizes[name]} bytes can be longer, and the server "
        "cuts the connection for it. Such a job is not enqueued, or ends FAILED although its work is done.",
        f"SET GLOBAL max_allowed_packet = {needed} (and in the server's configuration), or lower JOBQUEUE['{name}'].",
    )
