"""Which events wait for each other, as a number: positive for a key, negative for the events of a topic without key."""

from __future__ import annotations

import hashlib

from django.db import connections

from jobqueue.db import vendor
from jobqueue.models import OutboxEvent

LOWEST = -(2**63)
#: most lanes of one look
WINDOW = 1000


def key_lane(key: bytes) -> int:
    """1 to 2**63 - 1. Two keys with the same number, one in 10**19, would wait for each other without need."""
    return _number(b"k" + key)


def topic_lane(topic: str) -> int:
    """-(2**63 - 1) to -1."""
    return -_number(b"t" + topic.encode())


def heads(after: int, *, using: str, limit: int = WINDOW) -> dict[int, int]:
    """Up to `limit` lanes above `after` that have pending events, in order, each with the first of these.

    One index seek each, whatever the backlog. Leased, waiting and blocked ones are among them. Locks nothing.
    """
    connection = connections[using]
    table = connection.ops.quote_name(OutboxEvent._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(vendor(using).heads_after_sql(table, "lane", "ix_outbox_lane"), [after, limit])
        return dict(cursor.fetchall())


def _number(text: bytes) -> int:
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1 or 1
