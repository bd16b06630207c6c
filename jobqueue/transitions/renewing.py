"""Renewal of leases, and the progress that a running job reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial, reduce
from operator import or_
from typing import Any

from django.db import connections
from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce, Greatest, Least

from jobqueue.base.payload import JSON
from jobqueue.base.validation import SECONDS_MAX, check_seconds
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.expressions import AnyOfArray
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job
from jobqueue.models.rows import in_state
from jobqueue.transitions.leases import Lease, by_token, held, lost

_RENEWED_MAX = 500  # leases in one statement


def heartbeat(lease: Lease, *, lease_seconds: float) -> datetime:
    """Extend the lease to now + lease_seconds (or the task's own longer lease); the new lock_until, aware UTC.

    Only while it is still held and has not run out; else LeaseLost, and nothing was written.
    """
    if heartbeat_many([lease], lease_seconds=lease_seconds):
        raise lost(lease, "heartbeat")
    rows = held(lease).values_list("lock_until", flat=True)
    until: datetime | None = retry_transient("heartbeat", rows.first, using=lease.using)
    if until is None:
        raise lost(lease, "heartbeat")
    return until


def heartbeat_many(leases: Iterable[Lease], *, lease_seconds: float) -> list[Lease]:
    """Extend all `leases`, one statement per token; returns those that were lost and never raises for them."""
    until = _until(lease_seconds)
    gone: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        ids = [lease.job_id for lease in group]
        mine = in_state(ids, Job.Status.PROCESSING, using=using).filter(lock_token=token)
        rows = mine.filter(lock_until__gt=UtcNow())
        extend = partial(rows.update, lock_until=until, updated_at=UtcNow())
        if retry_transient("heartbeat", extend, using=using) < len(group):
            alive: set[int] = retry_transient("heartbeat", partial(set, rows.values_list("pk", flat=True)), using=using)
            gone += [lease for lease in group if lease.job_id not in alive]
    return gone


def renew_in_hand(
    leases: Iterable[tuple[int, bytes]], *, lease_seconds: float, using: str
) -> dict[tuple[int, bytes], float]:
    """Extend leases, each a job's id and its token, by one statement; returns the seconds for which each is held.

    The seconds count from the call. A lease that was lost or has run out is missing. A row that another transaction has
    locked is skipped: it is being settled, or its job is inside finish(). It cannot be reaped meanwhile, and waiting
    for it would delay the renewal of the others.
    """
    found: dict[tuple[int, bytes], float] = {}
    pairs = sorted(leases)
    for start in range(0, len(pairs), _RENEWED_MAX):
        found |= _renew(pairs[start : start + _RENEWED_MAX], lease_seconds, using)
    return found


def _renew(pairs: Sequence[tuple[int, bytes]], lease_seconds: float, using: str) -> dict[tuple[int, bytes], float]:
    ids_of: dict[bytes, list[int]] = defaultdict(list)
    for job_id, token in pairs:
        ids_of[token].append(job_id)
    each = [Q(lock_token=token, pk__in=ids) for token, ids in ids_of.items()]
    ours = in_state([job_id for job_id, _ in pairs], Job.Status.PROCESSING, using=using).filter(reduce(or_, each))
    living = ours.filter(lock_until__gt=UtcNow())
    changes = {"lock_until": _until(lease_seconds), "updated_at": UtcNow()}

    def extend() -> int:
        dialect = vendor(using)
        with dialect.transaction(connections[using]):
            rows = living.order_by("pk")
            if dialect.has_update_returning:
                rows = Job.objects.using(using).filter(AnyOfArray(F("pk"), dialect.lock_rows(rows).values("pk")))
            return dialect.update_unlocked(rows, changes)

    if retry_transient("heartbeat", extend, using=using) == len(pairs):
        return dict.fromkeys(pairs, lease_seconds)
    # Some were settled, lost or locked meanwhile.
    rows = living.annotate(now=Selected(UtcNow())).values_list("pk", "lock_token", "lock_until", "now")
    left: list[Any] = retry_transient("heartbeat", partial(list, rows), using=using)
    return {(job_id, bytes(token)): (until - now).total_seconds() for job_id, token, until, now in left}


def _until(lease_seconds: float) -> UtcNowPlus:
    seconds = check_seconds(lease_seconds, "lease_seconds")
    longer = Greatest(Coalesce(F("lease_seconds"), seconds), seconds)
    return UtcNowPlus(Least(longer, Value(float(SECONDS_MAX))))


def note_progress(lease: Lease, progress: JSON) -> bool:
    """Store how far the job is. One statement. False when the lease is no longer held; nothing was written."""
    changes: dict[str, object] = {"progress": progress, "updated_at": UtcNow()}
    return bool(retry_transient("progress", lambda: held(lease).update(**changes), using=lease.using))
