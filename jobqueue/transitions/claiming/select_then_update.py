"""READY -> PROCESSING by a locking SELECT and an UPDATE in one transaction."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cache, lru_cache
from itertools import chain, starmap
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.expressions import Slot
from jobqueue.db.fields import UtcDateTimeField
from jobqueue.db.prepared import Prepared, prepare_change, prepare_rows
from jobqueue.gates.admit import Admitted, admit, room_in
from jobqueue.gates.waiting import close_gates
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.models.rows import any_in_state, in_state
from jobqueue.transitions.claiming import candidates
from jobqueue.transitions.claiming.candidates import aged_levels
from jobqueue.transitions.claiming.queue_memory import NO_CURSOR, ScanCursor
from jobqueue.transitions.claiming.request import (
    NOTHING,
    Request,
    Row,
    Taken,
    end_expired,
    ended_now,
    expired,
    free_keys,
    lease_columns,
    row_columns,
    with_waiting_keys,
)
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.verb import end_in_groups

_LOCKED_AT, _LOCK_UNTIL = Slot("locked_at", UtcDateTimeField()), Slot("lock_until", UtcDateTimeField())


def select_then_update(request: Request) -> Taken:
    """One pass: lock due jobs, end those that have expired, lease the others, in one transaction."""
    levels = request.due_levels()
    # The first seek runs outside the transaction: an idle poll costs one statement and no BEGIN and COMMIT.
    top = next(levels, None)
    if top is None:
        return NOTHING
    using, token, room = request.using, uuid.uuid4().bytes, None
    with vendor(using).transaction(connections[using]):
        if not request.limits.none:
            room = room_in(request.queue, request.limit, request.limits, using, paced_max=request.paced_max)
            if not room.jobs:
                return NOTHING._replace(narrowed=request, is_full=room.is_full, shut_seconds=room.seconds)
            request = request.narrowed(room.jobs)
        first = lock_aged(request.queue, request.look, using=using, gated=request.gated)
        rows = list(chain.from_iterable(first.values()))
        if len(rows) < request.look:
            others = (level for level in chain([top], levels) if level not in first)
            limit, only = request.look - len(rows), request.only_level
            columns = row_columns(gated=request.gated)
            rows += lock_due(
                request.queue, limit, others, using=using, cursor=request.cursor, only_level=only, columns=columns
            )
        free = [row for row in rows if row.task not in request.excluded] if request.excluded else rows
        live, late = expired(free)
        if late:
            end_expired(in_state([row.pk for row in late], Job.Status.READY, using=using))
            end_in_groups(((row.pk, row.options, Job.Status.CANCELED) for row in late), using)
            request.ended.extend(ended_now(late, using=using))
        admitted = _admitted(live, request) if request.gated else (live[: request.limit], Admitted(), ())
        start, found, unwritten = admitted
        leases = stamp([request.lease(row, token, slot=found.slots.get(row.pk)) for row in start], token, request)
        free_keys(with_waiting_keys(leases))
        if room is not None:
            room.use(len(leases), using)
        passed = len(free) < len(rows)
        return Taken(
            rows, leases, late, found.blocked, spare=found.spare, narrowed=request, unwritten=unwritten, passed=passed
        )


def _admitted(live: list[Row], request: Request) -> tuple[list[Row], Admitted, Collection[int]]:
    """Those that may start; the others wait behind their gates, of which the last ones could not be written."""
    known, paced_max = request.known, request.paced_max
    found = admit(live, request.limit, queue=request.queue, known=known, paced_max=paced_max, using=request.using)
    unwritten = close_gates(found.blocked, request.queue, request.using) if found.blocked else ()
    return [row for row in live if row.pk in found.free], found, unwritten


def lock_due(
    queue: str,
    limit: int,
    levels: Iterable[int],
    *,
    using: str,
    cursor: ScanCursor = NO_CURSOR,
    only_level: int | None = None,
    columns: tuple[str, ...] | None = None,
) -> list[Row]:
    """Lock and read up to `limit` due rows: n rows, and at most one index record more per priority level.

    No level is read below `only_level` if that has rows.
    """
    rows: list[Row] = []
    for level in levels:
        wanted = limit - len(rows)
        found: list[Any] = []
        for start in cursor.starts(level):
            # Without the cursor the rows found from it are read again: this transaction's own locks are not skipped.
            if len(found) < wanted:
                prepared = _lock(using, wanted, columns or row_columns(), **start.condition())
                found = prepared.rows(queue=queue, level=level, **start.values())
        rows += starmap(Row, found)
        if len(rows) >= limit or (rows and level == only_level):
            break
    return rows


@lru_cache(maxsize=256)
def _lock(using: str, limit: int, columns: tuple[str, ...], **above: Slot) -> Prepared:
    due = candidates.due(candidates.QUEUE, candidates.LEVEL, using=using).filter(**above)
    return prepare_rows(lock_rows(due, limit, using, columns))


def lock_rows(rows: JobQuerySet, limit: int, using: str, columns: tuple[str, ...] = Row._fields) -> QuerySet[Any]:
    """The first `limit` of `rows` as these columns of Row, locked; rows that others have locked are skipped."""
    instants = {
        "due_at": Selected("run_at"),
        "made_at": Selected("created_at"),
        "valid_until": Selected("expires_at"),
        "now": Selected(UtcNow()),
    }
    free: QuerySet[Any] = vendor(using).lock_rows(rows).annotate(**instants).values_list(*columns)
    return free[:limit]


def lock_aged(queue: str, limit: int, *, using: str, gated: bool = False) -> dict[int, list[Row]]:
    """Lock and read up to `limit` rows that have waited longer than STARVE_SECONDS, by level; {} without it."""
    found: dict[int, list[Row]] = {}
    for level, rows in aged_levels(queue, using=using):
        # A level whose aged rows are all locked by others is left to lock_due().
        if locked := list(starmap(Row, lock_rows(rows, limit, using, row_columns(gated=gated)))):
            found[level] = locked
            limit -= len(locked)
        if not limit:
            break
    return found


def stamp(leases: list[Lease], token: bytes, request: Request) -> list[Lease]:
    """Write `leases`, which share `token`, on their rows. Returns those whose rows were still READY."""
    groups = defaultdict(list)
    for lease in leases:
        groups[lease.locked_at, lease.lock_until].append(lease.job_id)
    stamped = 0
    for (locked_at, lock_until), ids in groups.items():
        stamped += _take_over(request.using).change(
            ids=ids, worker=request.worker, token=token, locked_at=locked_at, lock_until=lock_until
        )
    if stamped == len(leases):
        return leases
    ids = [lease.job_id for lease in leases]
    mine = set(Job.objects.using(request.using).filter(pk__in=ids, lock_token=token).values_list("pk", flat=True))
    return [lease for lease in leases if lease.job_id in mine]


@cache
def _take_over(using: str) -> Prepared:
    # READY again in the WHERE: on a database that ignores SKIP LOCKED two claimers may have read the same rows.
    return prepare_change(any_in_state(Job.Status.READY, using=using), lease_columns(_LOCKED_AT, _LOCK_UNTIL))
