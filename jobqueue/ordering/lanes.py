"""The lanes of ordering keys: one for each queue and key, with the jobs that have not ended, in the order they came.

A job with a key is READY behind a gate until it is the head of its lane. Ids of places follow commits, because the key
stays locked from enqueue to COMMIT: so what anybody sees of a lane is a beginning of it, and its head is its head.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.prepared import hold_key
from jobqueue.db.seeks import GroupSeek
from jobqueue.models import Job, LaneEntry, OrderingKey

LOWEST = -1
#: lanes of one statement
WINDOW = 500


class Place(NamedTuple):
    """A job's place in its lane."""

    id: int
    lane: int
    job_id: int
    halted: bool
    status: int | None  # None: somebody has deleted the job's row
    gate: int | None
    queue: str | None


def lane_of(queue: str, ordering_key: bytes) -> int:
    """0 to 2**63 - 1. Two keys with the same number, one pair in 10**19, would wait for each other without need."""
    return int.from_bytes(_digest(queue, ordering_key)[:8], "big") >> 1


def hold(keys: Iterable[tuple[str, bytes]], using: str) -> None:
    """Keep others from enqueueing with these (queue, ordering key) until the transaction ends, low to high."""
    for digest in sorted({_digest(queue, key) for queue, key in keys}):
        hold_key(OrderingKey, digest, using)


def join(places: Sequence[tuple[int, int]], using: str) -> None:
    """Add (lane, job id) to the ends of their lanes. Their keys must be held."""
    connection, most = connections[using], vendor(using).insert_rows_max
    table = LaneEntry._meta.db_table
    for start in range(0, len(places), most):
        vendor(using).insert(connection, table, ["lane", "job_id"], places[start : start + most])


def active(after: int, *, using: str, limit: int) -> list[int]:
    """Up to `limit` lanes above `after` in which jobs are, in order: one index seek each, however many jobs wait."""
    table = connections[using].ops.quote_name(LaneEntry._meta.db_table)
    with connections[using].cursor() as cursor:
        cursor.execute(vendor(using).distinct_after_sql(table, "lane", "ix_lane_entry"), [after, limit])
        return [row[0] for row in cursor.fetchall()]


def next_places(after: Mapping[int, int], *, using: str) -> dict[int, Place]:
    """For each lane its first place behind that id (0: its head), of those that have one. One seek each, no lock."""
    found: dict[int, Place] = {}
    wanted = sorted(after.items())
    quote = connections[using].ops.quote_name
    seek = GroupSeek(
        table=quote(LaneEntry._meta.db_table),
        group="lane",
        columns=("id", "lane", "job_id", "halted"),
        other=quote(Job._meta.db_table),
        link="job_id",
        other_columns=("status", "gate", "queue"),
    )
    for start in range(0, len(wanted), WINDOW):
        with connections[using].cursor() as cursor:
            cursor.execute(*vendor(using).next_in_groups_sql(seek, wanted[start : start + WINDOW]))
            for place in map(_place, cursor.fetchall()):
                found[place.lane] = place
    return found


def front(lane: int, *, using: str, depth: int) -> list[Place]:
    """The first `depth` places of one lane. Locks nothing."""
    rows = LaneEntry.objects.using(using).filter(lane=lane).order_by("lane", "id")
    columns = ("id", "lane", "job_id", "halted", "job__status", "job__gate", "job__queue")
    return [Place(*row) for row in rows.values_list(*columns)[:depth]]


def _place(row: Sequence[Any]) -> Place:
    found = Place._make(row)
    return found._replace(halted=bool(found.halted))


def _digest(queue: str, ordering_key: bytes) -> bytes:
    # No queue name contains a NUL.
    return hashlib.sha256(queue.encode() + b"\0" + ordering_key).digest()
