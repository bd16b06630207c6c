"""READY -> PROCESSING."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from itertools import chain
from typing import Any

from django.db import connections
from django.db.models import F

from jobqueue import candidates
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InsideTransaction
from jobqueue.models import Job
from jobqueue.names import check_int, check_queue, check_seconds, check_worker
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.rows import in_state

LIMIT_MAX = 10_000
_COLUMNS = ("pk", "payload", "task", "attempts", "max_attempts", "fence", "run_at", "lease_seconds", "now")


def claim(
    queue: str, limit: int = 1, *, worker: str, lease_seconds: float = 60, using: str | None = None
) -> list[Lease]:
    """Up to `limit` leases on due jobs of `queue`, highest priority first, then run_at, then id; [] when none.

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
    return retry_transient(lambda: _take(queue, limit, worker, seconds, alias), using=alias)


def refuse_open_transaction(using: str, verb: str) -> None:
    """Raise InsideTransaction when a caller's transaction is open; a test case's own wrapper does not count."""
    blocks = connections[using].atomic_blocks
    if blocks and not getattr(blocks[-1], "_from_testcase", False):
        raise InsideTransaction(
            f"{verb}() was called inside transaction.atomic() on {using!r}. It commits by itself, so that its row "
            "locks end before any job runs; nothing was written. Call it outside the block."
        )


def _take(queue: str, limit: int, worker: str, seconds: float, using: str) -> list[Lease]:
    levels = candidates.due_levels(queue, using=using)
    # The first seek runs outside the transaction: an idle poll costs one statement and no BEGIN and COMMIT.
    top = next(levels, None)
    if top is None:
        return []
    token = uuid.uuid4().bytes
    with vendor(using).transaction(connections[using]):
        rows = lock_due(queue, limit, chain([top], levels), using=using)
        leases = [_lease(row, token, queue, worker, seconds, using) for row in rows]
        return _stamp(leases, token, worker, using)


def lock_due(queue: str, limit: int, levels: Iterable[int], *, using: str) -> list[Any]:
    """Lock and read up to `limit` due rows: n rows, and at most one index record more per priority level."""
    rows: list[Any] = []
    for level in levels:
        free = vendor(using).lock_rows(candidates.due(queue, level, using=using)).annotate(now=UtcNow())
        rows += free.values_list(*_COLUMNS, named=True)[: limit - len(rows)]
        if len(rows) >= limit:
            break
    return rows


def _lease(row: Any, token: bytes, queue: str, worker: str, seconds: float, using: str) -> Lease:
    granted = max(seconds, row.lease_seconds or 0.0)
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
        run_at=row.run_at,
        lease_seconds=granted,
        using=using,
    )


def _stamp(leases: list[Lease], token: bytes, worker: str, using: str) -> list[Lease]:
    groups = defaultdict(list)
    for lease in leases:
        groups[lease.locked_at, lease.lock_until].append(lease.job_id)
    stamped = 0
    for (locked_at, lock_until), ids in groups.items():
        # READY again in the WHERE: on a database that ignores SKIP LOCKED two claimers may have read the same rows.
        stamped += in_state(ids, Job.Status.READY, using=using).update(
            status=Job.Status.PROCESSING,
            locked_by=worker,
            lock_token=token,
            locked_at=locked_at,
            lock_until=lock_until,
            last_started_at=locked_at,
            last_worker=worker,
            updated_at=locked_at,
            fence=F("fence") + 1,
            wait_reason=None,
        )
    if stamped == len(leases):
        return leases
    ids = [lease.job_id for lease in leases]
    mine = set(Job.objects.using(using).filter(pk__in=ids, lock_token=token).values_list("pk", flat=True))
    return [lease for lease in leases if lease.job_id in mine]
