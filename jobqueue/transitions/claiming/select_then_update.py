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
from jobqueue.transitions.claiming.plans import (
    NOTHING,
    CheckEachJob,
    ClaimPlan,
    LockAndStamp,
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
from jobqueue.transitions.claiming.queue_memory import NO_CURSOR, ScanCursor
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.verb import end_in_groups

_LOCKED_AT, _LOCK_UNTIL = Slot("locked_at", UtcDateTimeField()), Slot("lock_until", UtcDateTimeField())


def select_then_update(plan: LockAndStamp) -> Taken:
    """One pass: lock due jobs, end those that have expired, lease the others, in one transaction."""
    levels = plan.levels()
    # The first seek runs outside the transaction: an idle poll costs one statement and no BEGIN and COMMIT.
    top = next(levels, None)
    if top is None:
        return NOTHING
    using, token, room = plan.using, uuid.uuid4().bytes, None
    with vendor(using).transaction(connections[using]):
        if not plan.limits.none:
            room = room_in(plan.queue, plan.limit, plan.limits, using, paced_max=plan.paced_max)
            if not room.jobs:
                full, seconds, no_gate = room.is_full, room.seconds, room.no_gate
                return NOTHING._replace(narrowed=plan, is_full=full, shut_seconds=seconds, no_gate=no_gate)
            plan = plan.narrowed(room.jobs)
        columns, begin = row_columns(gated=isinstance(plan, CheckEachJob)), plan.begin
        first = lock_aged(plan.queue, plan.look, using=using, columns=columns)
        rows = list(chain.from_iterable(first.values()))
        if left := plan.look - len(rows):
            others, only = (level for level in chain([top], levels) if level not in first), begin.only_level
            rows += lock_due(
                plan.queue, left, others, using=using, cursor=begin.cursor, only_level=only, columns=columns
            )
        free = [row for row in rows if row.task not in plan.passed_over] if plan.passed_over else rows
        live, late = expired(free)
        if late:
            _end_late(late, plan)
        start, found, unwritten = _admitted(live, plan)
        leases = stamp([plan.lease(row, token, slot=found.slots.get(row.pk)) for row in start], token, plan)
        free_keys(with_waiting_keys(leases))
        if room is not None:
            room.use(len(leases), using)
        passed, put, unused = len(free) < len(rows), found.blocked, found.unused_slots
        return Taken(rows, leases, late, put, unused_slots=unused, narrowed=plan, unwritten=unwritten, passed=passed)


def _end_late(late: list[Row], plan: LockAndStamp) -> None:
    end_expired(in_state([row.pk for row in late], Job.Status.READY, using=plan.using))
    end_in_groups(((row.pk, row.options, Job.Status.CANCELED) for row in late), plan.using)
    plan.ended.extend(ended_now(late, using=plan.using))


def _admitted(live: list[Row], plan: LockAndStamp) -> tuple[list[Row], Admitted, Collection[int]]:
    """Those that may start; the others wait behind their gates, of which the last ones could not be written."""
    if not isinstance(plan, CheckEachJob):
        return live[: plan.limit], Admitted(), ()
    known, paced_max = plan.known, plan.paced_max
    found = admit(live, plan.limit, queue=plan.queue, known=known, paced_max=paced_max, using=plan.using)
    unwritten = close_gates(found.blocked, plan.queue, plan.using) if found.blocked else ()
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
    shown: QuerySet[Any] = rows.annotate(**instants).values_list(*columns)
    return vendor(using).lock_rows(shown, limit)


def lock_aged(queue: str, limit: int, *, using: str, columns: tuple[str, ...] | None = None) -> dict[int, list[Row]]:
    """Lock and read up to `limit` rows that have waited longer than STARVE_SECONDS, by level; {} without it."""
    found: dict[int, list[Row]] = {}
    for level, rows in aged_levels(queue, using=using):
        # A level whose aged rows are all locked by others is left to lock_due().
        if locked := list(starmap(Row, lock_rows(rows, limit, using, columns or row_columns()))):
            found[level] = locked
            limit -= len(locked)
        if not limit:
            break
    return found


def stamp(leases: list[Lease], token: bytes, plan: ClaimPlan) -> list[Lease]:
    """Write `leases`, which share `token`, on their rows. Returns those whose rows were still READY."""
    groups = defaultdict(list)
    for lease in leases:
        groups[lease.locked_at, lease.lock_until].append(lease.job_id)
    stamped = 0
    for (locked_at, lock_until), ids in groups.items():
        stamped += _take_over(plan.using).change(
            ids=ids, worker=plan.worker, token=token, locked_at=locked_at, lock_until=lock_until
        )
    if stamped == len(leases):
        return leases
    ids = [lease.job_id for lease in leases]
    mine = set(Job.objects.using(plan.using).filter(pk__in=ids, lock_token=token).values_list("pk", flat=True))
    return [lease for lease in leases if lease.job_id in mine]


@cache
def _take_over(using: str) -> Prepared:
    # READY again in the WHERE: on a database that ignores SKIP LOCKED two claimers may have read the same rows.
    return prepare_change(any_in_state(Job.Status.READY, using=using), lease_columns(_LOCKED_AT, _LOCK_UNTIL))
