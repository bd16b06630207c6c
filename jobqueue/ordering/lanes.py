"""Lanes: one for each queue and ordering key, with an entry for each job that has not ended, in order of enqueue.

A job with a key is READY behind a closed gate until its entry is the head of its lane. The ids of entries follow the
order of commits, because the key stays locked from enqueue to COMMIT. So every reader sees a prefix of the lane: the
first entry it sees is the real head.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Count, Min, Q

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.db.statements import GroupSeek, LooseScan
from jobqueue.db.upsert import hold_key
from jobqueue.models import HeldKey, Job, LaneEntry
from jobqueue.models.rows import in_state
from jobqueue.models.states import waiting_state
from jobqueue.ordering import KEY_GATE, WAITS

LOWEST = -1
#: lanes of one statement
WINDOW = 500
# Entries are appended and removed at the head, so none can appear before a head that was seen. Still, a cursor is not
# trusted for longer than this, nor by the sweep.
CURSOR_SECONDS = 1.0
_CURSORS_MAX = 10_000
_COLUMNS = ("lane", "job_id", "halted", "job__queue", "job__ordering_key", "job__status", "job__gate", "job__run_at")


class EntryState(NamedTuple):
    """An entry of a lane, with the state of its job."""

    id: int
    lane: int
    job_id: int
    halted: bool
    status: int | None  # None: the job's row was deleted
    gate: int | None
    queue: str | None


def lane_of(queue: str, ordering_key: bytes) -> int:
    """The lane's number, 0 to 2**63 - 1. Two keys with equal numbers, one pair in 10**19, would wait for each other."""
    return int.from_bytes(_digest(queue, ordering_key)[:8], "big") >> 1


def hold(keys: Iterable[tuple[str, bytes]], using: str) -> None:
    """Lock these (queue, ordering key) until the transaction ends, in one order: other enqueues with them wait."""
    for digest in sorted({_digest(queue, key) for queue, key in keys}):
        hold_key(HeldKey, digest, using)


def join(entries: Sequence[tuple[int, int]], using: str) -> None:
    """Append (lane, job id) to their lanes. The keys must be held."""
    connection, most = connections[using], vendor(using).insert_rows_max
    table = LaneEntry._meta.db_table
    for start in range(0, len(entries), most):
        vendor(using).insert(connection, table, ["lane", "job_id"], entries[start : start + most])


def move(job_id: int, queue: str, ordering_key: bytes | None, reason: str | None, using: str) -> None:
    """Let a READY job, whose row the open transaction has locked, wait in the lane of another key, or in none.

    The key must be held; promote both lanes. `reason` is the wait_reason of a job without a key.
    """
    # Its entry is left to promote(), as that of a deleted job: it may be halted, which the next one has to know.
    LaneEntry.objects.using(using).filter(job_id=job_id).update(job_id=None)
    gate = {"gate": 0, "wait_reason": reason}
    if ordering_key is not None:
        join([(lane_of(queue, ordering_key), job_id)], using)
        gate = {"gate": KEY_GATE, "wait_reason": WAITS}
    rows = in_state([job_id], Job.Status.READY, using=using)
    rows.update(ordering_key=ordering_key, updated_at=UtcNow(), **gate)


def active(after: int, *, using: str, limit: int) -> list[int]:
    """Up to `limit` lanes above `after` that have entries, in order: one index seek each, however many jobs wait."""
    table = connections[using].ops.quote_name(LaneEntry._meta.db_table)
    scan = LooseScan(table, ["lane"], "ix_lane_entry", after=True)
    with connections[using].cursor() as cursor:
        cursor.execute(vendor(using).loose_scan_sql(scan), [after, limit])
        return [row[0] for row in cursor.fetchall()]


def next_entries(after: Mapping[int, int], *, using: str) -> dict[int, EntryState]:
    """For each lane its first entry after that id (0: its head), if it has one. One seek each, no locks."""
    found: dict[int, EntryState] = {}
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
            for entry in map(EntryState._make, cursor.fetchall()):
                found[entry.lane] = entry._replace(halted=bool(entry.halted))
    return found


def front(lane: int, *, using: str, depth: int) -> list[EntryState]:
    """The first `depth` entries of one lane. Locks nothing."""
    rows = LaneEntry.objects.using(using).filter(lane=lane).order_by("lane", "id")
    columns = ("id", "lane", "job_id", "halted", "job__status", "job__gate", "job__queue")
    return [EntryState(*row) for row in rows.values_list(*columns)[:depth]]


def _digest(queue: str, ordering_key: bytes) -> bytes:
    # No queue name contains a NUL.
    return hashlib.sha256(queue.encode() + b"\0" + ordering_key).digest()


class LaneCursors:
    """Where the heads of lanes were seen last, so that a look for a head need not begin at the lane's first entry ever.

    While any transaction keeps an old snapshot open, the index entries of removed rows cannot be purged, and a look
    from the beginning reads all of them.
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[str, int], int] = {}
        self._good_until = 0.0

    def of(self, lanes: Iterable[int], *, using: str) -> dict[int, int]:
        """Map each lane to the id behind which its head stands."""
        now = time.monotonic()
        if now >= self._good_until or len(self._heads) > _CURSORS_MAX:
            # All of them, because lanes come and go: the memory must not grow with them.
            self._heads, self._good_until = {}, now + CURSOR_SECONDS
        return {lane: self._heads.get((using, lane), 1) - 1 for lane in lanes}

    def keep(self, heads: Mapping[int, EntryState], *, using: str) -> None:
        """These heads were seen. Ignored where the database keeps no old versions of rows."""
        if not vendor(using).single_writer:
            self._heads |= {(using, lane): entry.id for lane, entry in heads.items()}


@dataclass(frozen=True, slots=True)
class KeyState:
    """An ordering key with jobs that have not ended, and the state of the first of them.

    state: "running"; "ready", "scheduled" or "held" = the first job waits, as models.states has it, and blocks the
    others; "failed" = the first job is FAILED, and the others wait for it; "halted" = a job failed, and the others wait
    for resume(). `jobs` counts all of them.
    """

    queue: str
    ordering_key: bytes
    state: str
    jobs: int
    first_id: int
    due_at: datetime


def hot_keys(*, queue: str | None = None, limit: int = 20, using: str) -> list[KeyState]:
    """The keys with the most jobs, in that order. Reads the entry of every job with a key, without locks."""
    return _states(_of(queue, using), limit, using)


def stuck_keys(*, queue: str | None = None, limit: int = 20, using: str) -> list[KeyState]:
    """The keys that a failed job blocks, those with the most jobs first. Reads as hot_keys()."""
    held = _of(queue, using).filter(Q(halted=True) | Q(job__status=Job.Status.FAILED))
    return _states(LaneEntry.objects.using(using).filter(lane__in=held.order_by().values("lane")), limit, using)


def _of(queue: str | None, using: str) -> Any:
    rows = LaneEntry.objects.using(using)
    return rows if queue is None else rows.filter(job__queue=queue)


def _states(rows: Any, limit: int, using: str) -> list[KeyState]:
    counted = rows.values("lane").annotate(jobs=Count("id"), first=Min("id")).order_by("-jobs", "lane")[:limit]
    found = {row["first"]: row["jobs"] for row in counted}
    now = read_now(using)
    heads = LaneEntry.objects.using(using).filter(pk__in=list(found), job__queue__isnull=False)
    states = [_state(found[pk], row, now) for pk, *row in heads.values_list("id", *_COLUMNS)]
    return sorted(states, key=lambda key: (-key.jobs, key.queue, key.ordering_key))


def _state(jobs: int, row: Sequence[Any], now: datetime) -> KeyState:
    _lane, first_id, halted, queue, key, status, gate, due_at = row
    if status == Job.Status.FAILED:
        state = "failed"
    elif status == Job.Status.PROCESSING:
        state = "running"
    elif halted:
        state = "halted"
    else:
        state = waiting_state(gate, due_at, now)
    return KeyState(queue, key or b"", state, jobs, first_id, due_at)
