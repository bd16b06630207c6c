"""READY -> PROCESSING."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

from django.db import Error, connections
from django.db.models import F, QuerySet

from jobqueue import candidates
from jobqueue.candidates import Head
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.fields import NameField, TokenField, UtcDateTimeField
from jobqueue.db.open_transaction import in_open_transaction
from jobqueue.db.prepared import Prepared, Slot, prepare_change, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, InsideTransaction
from jobqueue.models import Job
from jobqueue.models.querysets import JobQuerySet
from jobqueue.names import SECONDS_MAX, check_int, check_queue, check_seconds, check_worker
from jobqueue.payload import JSON
from jobqueue.starving import starving_levels
from jobqueue.transitions.expiring import EXPIRED_BATCH, announce_expired, end_expired
from jobqueue.transitions.floors import NO_FLOOR, Floor, Floors
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.rows import any_in_state

LIMIT_MAX = 10_000
FLOOR_BATCH = 10  # smaller claims keep the exact order
_SINCE, _AFTER = Slot("since", UtcDateTimeField()), Slot("after", Job._meta.get_field("id"))
_WORKER, _LOCKED_AT = Slot("worker", NameField()), Slot("locked_at", UtcDateTimeField())


class _Row(NamedTuple):
    pk: int
    payload: JSON
    task: str | None
    attempts: int
    max_attempts: int
    fence: int
    due_at: datetime
    made_at: datetime
    expires_at: datetime | None
    options: JSON
    lease_seconds: float | None
    priority: int
    now: datetime


def claim(
    queue: str, limit: int = 1, *, worker: str, lease_seconds: float = 60, using: str | None = None
) -> list[Lease]:
    """Up to `limit` leases on due jobs of `queue`, highest priority first, then run_at, then id; [] when none.

    With STARVE_SECONDS of the queue, about once a second those that have waited longer come before all others.

    Jobs whose expires_at has passed are ended CANCELED instead and do not count.

    The leases end at the database's now + lease_seconds (or the task's own longer lease). Rows that another
    transaction has locked are skipped, so one call need not see everything that is due. Committed before it
    returns: raises InsideTransaction in an open transaction, DatabaseBusy after repeated deadlocks, InvalidValue
    or InvalidType for bad arguments.
    """
    check_queue(queue)
    check_int(limit, "limit", 1, LIMIT_MAX)
    check_worker(worker)
    seconds = check_seconds(lease_seconds, "lease_seconds")
    alias = using or load().database
    refuse_open_transaction(alias, "claim")
    return _take(queue, limit, worker, seconds, alias)


class Claimer:
    """claim() for a process that claims again and again: it remembers how far it has come in each queue."""

    def __init__(self, worker: str, using: str) -> None:
        self._worker, self._using = check_worker(worker), using
        self._floors = Floors()

    def claim(self, queue: str, limit: int, *, lease_seconds: float, head: Head | None = None) -> list[Lease]:
        """As claim(); a batch may pass over jobs that came back with an earlier run_at, for a second at most.

        `head` spares the look for the highest level.
        """
        floors = self._floors if limit >= FLOOR_BATCH else None
        refuse_open_transaction(self._using, "claim")
        return _take(queue, limit, self._worker, lease_seconds, self._using, floors, head)


def refuse_open_transaction(using: str, verb: str) -> None:
    """Raise InsideTransaction when a caller's transaction is open; a test case's own wrapper does not count."""
    if in_open_transaction(using):
        raise InsideTransaction(
            f"{verb}() was called inside transaction.atomic(), or with autocommit off, on {using!r}. It commits by "
            "itself, so that its row locks end before any job runs; nothing was written. Call it outside the block."
        )


def _take(
    queue: str,
    limit: int,
    worker: str,
    seconds: float,
    using: str,
    floors: Floors | None = None,
    head: Head | None = None,
) -> list[Lease]:
    """Passes until there are enough, or one has met no job that expired: behind those may be others."""
    leases: list[Lease] = []
    look = limit
    while True:
        take = partial(_pass, queue, limit - len(leases), look, worker, seconds, using, floors, head)
        try:
            found, late = retry_transient(take, using=using)
        except (Error, DatabaseBusy):
            if leases:
                return leases
            raise
        leases += found
        announce_expired(late, queue, using)
        if not late or len(leases) >= limit:
            return leases
        look, head = max(limit, EXPIRED_BATCH), None


def _pass(
    queue: str,
    limit: int,
    look: int,
    worker: str,
    seconds: float,
    using: str,
    floors: Floors | None,
    head: Head | None,
) -> tuple[list[Lease], list[_Row]]:
    """One transaction: up to `limit` leases of the first `look` due jobs, and those among them that expired."""
    floor = floors.of(queue) if floors else NO_FLOOR
    levels = candidates.due_levels(queue, using=using, surely=floor.level, head=head)
    # The first seek runs outside the transaction: an idle poll costs one statement and no BEGIN and COMMIT.
    top = next(levels, None)
    if top is None:
        return [], []
    token = uuid.uuid4().bytes
    with vendor(using).transaction(connections[using]):
        first = lock_starving(queue, look, using=using)
        rows = list(chain.from_iterable(first.values()))
        if len(rows) < look:
            others = (level for level in chain([top], levels) if level not in first)
            rows += lock_due(queue, look - len(rows), others, using=using, floor=floor)
        late = end_expired(rows, using=using)
        gone = {row.pk for row in late}
        live = [row for row in rows if row.pk not in gone][:limit]
        leases = [_lease(row, token, queue, worker, seconds, using) for row in live]
        leases = _stamp(leases, token, worker, using)
    if floors and len(rows) == limit and not first and not late:
        alike = (rows[0].priority, rows[0].due_at) == (rows[-1].priority, rows[-1].due_at)
        floors.keep(queue, rows[-1].priority, rows[-1].due_at, rows[-1].pk if alike else None)
    return leases, late


def lock_due(queue: str, limit: int, levels: Iterable[int], *, using: str, floor: Floor = NO_FLOOR) -> list[_Row]:
    """Lock and read up to `limit` due rows: n rows, and at most one index record more per priority level."""
    rows: list[_Row] = []
    for level in levels:
        wanted = limit - len(rows)
        found = _lock_above(queue, floor, wanted, using) if level == floor.level else []
        if len(found) < wanted:
            found = _lock(using, wanted).rows(queue=queue, level=level)
        rows += map(_Row._make, found)
        if len(rows) >= limit:
            break
    return rows


def _lock_above(queue: str, floor: Floor, limit: int, using: str) -> list[tuple[Any, ...]]:
    values = {"queue": queue, "level": floor.level, "since": floor.run_at}
    if floor.job_id is None:
        return _lock(using, limit, run_at__gte=_SINCE).rows(**values)
    return _lock(using, limit, run_at=_SINCE, id__gt=_AFTER).rows(**values, after=floor.job_id)


@lru_cache(maxsize=256)
def _lock(using: str, limit: int, **above: Slot) -> Prepared:
    due = candidates.due(candidates.QUEUE, candidates.LEVEL, using=using).filter(**above)
    return prepare_rows(_locking(due, limit, using))


def _locking(rows: JobQuerySet, limit: int, using: str) -> QuerySet[Any]:
    instants = {"due_at": Selected("run_at"), "made_at": Selected("created_at"), "now": Selected(UtcNow())}
    free: QuerySet[Any] = vendor(using).lock_rows(rows).annotate(**instants).values_list(*_Row._fields)
    return free[:limit]


def lock_starving(queue: str, limit: int, *, using: str) -> dict[int, list[_Row]]:
    """Lock and read up to `limit` rows that waited longer than STARVE_SECONDS, by level; {} without the setting."""
    found: dict[int, list[_Row]] = {}
    for level, rows in starving_levels(queue, using=using):
        # A level of which somebody else has locked all such rows is left to lock_due().
        if locked := [_Row._make(row) for row in _locking(rows, limit, using)]:
            found[level] = locked
            limit -= len(locked)
        if not limit:
            break
    return found


def _lease(row: _Row, token: bytes, queue: str, worker: str, seconds: float, using: str) -> Lease:
    # Bounded: plain SQL may have written any number, and one row must not stop the claims of its queue.
    granted = min(max(seconds, row.lease_seconds or 0.0), float(SECONDS_MAX))
    return Lease(
        job_id=row.pk,
        token=token,
        fence=row.fence + 1,
        attempt=row.attempts + 1,
        payload=row.payload,
        lock_until=row.now + timedelta(seconds=granted),
        queue=queue,
        task=row.task,
        max_attempts=row.max_attempts,
        worker=worker,
        locked_at=row.now,
        run_at=row.due_at,
        created_at=row.made_at,
        lease_seconds=granted,
        using=using,
        options=row.options,
    )


def _stamp(leases: list[Lease], token: bytes, worker: str, using: str) -> list[Lease]:
    groups = defaultdict(list)
    for lease in leases:
        groups[lease.locked_at, lease.lock_until].append(lease.job_id)
    stamped = 0
    for (locked_at, lock_until), ids in groups.items():
        stamped += _take_over(using).change(
            ids=ids, worker=worker, token=token, locked_at=locked_at, lock_until=lock_until
        )
    if stamped == len(leases):
        return leases
    ids = [lease.job_id for lease in leases]
    mine = set(Job.objects.using(using).filter(pk__in=ids, lock_token=token).values_list("pk", flat=True))
    return [lease for lease in leases if lease.job_id in mine]


@cache
def _take_over(using: str) -> Prepared:
    # READY again in the WHERE: on a database that ignores SKIP LOCKED two claimers may have read the same rows.
    return prepare_change(
        any_in_state(Job.Status.READY, using=using),
        {
            "status": Job.Status.PROCESSING,
            "locked_by": _WORKER,
            "lock_token": Slot("token", TokenField()),
            "locked_at": _LOCKED_AT,
            "lock_until": Slot("lock_until", UtcDateTimeField()),
            "last_started_at": _LOCKED_AT,
            "last_worker": _WORKER,
            "updated_at": _LOCKED_AT,
            "fence": F("fence") + 1,
            "wait_reason": None,
        },
    )
