"""READY -> PROCESSING by a locking SELECT and an UPDATE in one transaction."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import chain
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobqueue import candidates
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.fields import UtcDateTimeField
from jobqueue.db.prepared import Prepared, Slot, prepare_change, prepare_rows
from jobqueue.models import Job
from jobqueue.models.querysets import JobQuerySet
from jobqueue.starving import starving_levels
from jobqueue.transitions.expiring import end_expired, ended_now, expired
from jobqueue.transitions.floors import NO_FLOOR, Floor
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.request import Request, Row, Taken, taken
from jobqueue.transitions.rows import any_in_state, in_state

_LOCKED_AT, _LOCK_UNTIL = Slot("locked_at", UtcDateTimeField()), Slot("lock_until", UtcDateTimeField())


def take_in_steps(request: Request, levels: Iterator[int]) -> Taken:
    """Lock, end those that expired, lease the others, in one transaction."""
    queue, look, using, token = request.queue, request.look, request.using, uuid.uuid4().bytes
    with vendor(using).transaction(connections[using]):
        first = lock_starving(queue, look, using=using)
        rows = list(chain.from_iterable(first.values()))
        if len(rows) < look:
            others = (level for level in levels if level not in first)
            rows += lock_due(queue, look - len(rows), others, using=using, floor=request.floor)
        live, late = expired(rows)
        if late:
            end_expired(in_state([row.pk for row in late], Job.Status.READY, using=using))
            request.ended.extend(ended_now(late, using=using))
        leases = [request.lease(row, token) for row in live[: request.limit]]
        return Taken(rows, _stamp(leases, token, request), late)


def lock_due(queue: str, limit: int, levels: Iterable[int], *, using: str, floor: Floor = NO_FLOOR) -> list[Row]:
    """Lock and read up to `limit` due rows: n rows, and at most one index record more per priority level."""
    rows: list[Row] = []
    for level in levels:
        wanted = limit - len(rows)
        found: list[Any] = []
        if level == floor.level:
            found = _lock(using, wanted, **floor.condition()).rows(queue=queue, level=level, **floor.values())
        if len(found) < wanted:
            found = _lock(using, wanted).rows(queue=queue, level=level)
        rows += map(Row._make, found)
        if len(rows) >= limit:
            break
    return rows


@lru_cache(maxsize=256)
def _lock(using: str, limit: int, **above: Slot) -> Prepared:
    due = candidates.due(candidates.QUEUE, candidates.LEVEL, using=using).filter(**above)
    return prepare_rows(_locking(due, limit, using))


def _locking(rows: JobQuerySet, limit: int, using: str) -> QuerySet[Any]:
    instants = {
        "due_at": Selected("run_at"),
        "made_at": Selected("created_at"),
        "valid_until": Selected("expires_at"),
        "now": Selected(UtcNow()),
    }
    free: QuerySet[Any] = vendor(using).lock_rows(rows).annotate(**instants).values_list(*Row._fields)
    return free[:limit]


def lock_starving(queue: str, limit: int, *, using: str) -> dict[int, list[Row]]:
    """Lock and read up to `limit` rows that waited longer than STARVE_SECONDS, by level; {} without the setting."""
    found: dict[int, list[Row]] = {}
    for level, rows in starving_levels(queue, using=using):
        # A level of which somebody else has locked all such rows is left to lock_due().
        if locked := [Row._make(row) for row in _locking(rows, limit, using)]:
            found[level] = locked
            limit -= len(locked)
        if not limit:
            break
    return found


def _stamp(leases: list[Lease], token: bytes, request: Request) -> list[Lease]:
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
    return prepare_change(any_in_state(Job.Status.READY, using=using), taken(_LOCKED_AT, _LOCK_UNTIL))
