"""Lanes: numbers of events that wait for each other, positive for a key, negative for a topic's events without key."""

from __future__ import annotations

import hashlib

from django.db import connections

from jobqueue.db import vendor
from jobqueue.models import OutboxEvent
from jobqueue.outbox.event import Event

LOWEST = -(2**63)
#: the most lanes that one statement reads
WINDOW = 1000


def key_lane(key: bytes) -> int:
    """1 to 2**63 - 1. Two keys with the same number (one pair in 10**19) wait for each other needlessly."""
    return _number(b"k" + key)


def lane_of(event: Event) -> int:
    """The lane of an event that was not skipped."""
    return topic_lane(event.topic) if event.key_bytes is None else key_lane(event.key_bytes)


def topic_lane(topic: str) -> int:
    """-(2**63 - 1) to -1."""
    return -_number(b"t" + topic.encode())


def heads(after: int, *, using: str, limit: int = WINDOW) -> dict[int, int]:
    """Read up to `limit` lanes above `after` that have pending events, in order, each with the id of its first one.

    One index seek per lane at any backlog. Leased, waiting and blocked events count as pending. Locks nothing.
    """
    connection = connections[using]
    table = connection.ops.quote_name(OutboxEvent._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(vendor(using).first_ids_after_sql(table, "lane", "ix_outbox_lane"), [after, limit])
        return dict(cursor.fetchall())


def head_events(*, using: str, limit: int = WINDOW, last_error_begins: str | None = None) -> list[tuple[int, str, int]]:
    """The first events of up to `limit` lanes that are no dead letters: id, topic, lane, in the order of the ids.

    `last_error_begins`: only those whose last error begins with this text, which has no wildcards of LIKE.
    """
    connection = connections[using]
    table = connection.ops.quote_name(OutboxEvent._meta.db_table)
    error = "" if last_error_begins is None else " AND e.last_error LIKE %s"
    sql = vendor(using).first_rows_sql(table, "lane", "ix_outbox_lane", "topic", f"e.failed_at IS NULL{error}")
    with connection.cursor() as cursor:
        cursor.execute(sql, [LOWEST, limit, *([f"{last_error_begins}%"] if error else [])])
        return [(event_id, str(name), lane) for event_id, name, lane in cursor.fetchall() if name is not None]


def _number(text: bytes) -> int:
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1 or 1
