"""Renewal of leases, and the progress that a running job reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.db import connections
from django.db.models import F, Value
from django.db.models.functions import Coalesce, Greatest, Least

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.models.rows import in_state
from jobqueue.payload import JSON
from jobqueue.transitions.leases import Lease, by_token, free_ids, held, lost
from jobqueue.validation import SECONDS_MAX, check_seconds


def heartbeat(lease: Lease, *, lease_seconds: float) -> datetime:
    """Extend the lease to now + lease_seconds (or the task's own longer lease); the new lock_until, aware UTC.

    Only while it is still held and has not run out; else LeaseLost, and nothing was written.
    """
    if heartbeat_many([lease], lease_seconds=lease_seconds):
        raise lost(lease, "heartbeat")
    rows = held(lease).values_list("lock_until", flat=True)
    until: datetime | None = retry_transient(rows.first, using=lease.using)
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
        extend = _extend(rows, until)
        if retry_transient(extend, using=using) < len(group):
            alive: set[int] = retry_transient(partial(set, rows.values_list("pk", flat=True)), using=using)
            gone += [lease for lease in group if lease.job_id not in alive]
    return gone


def renew_free(leases: Iterable[Lease], *, lease_seconds: float) -> list[Lease]:
    """heartbeat_many() that skips rows locked by other transactions; returns the leases it has renewed.

    A locked row is being settled, or its job is inside finish(). It cannot be reaped meanwhile, and waiting for it
    would delay the renewal of the others.
    """
    until = _until(lease_seconds)
    renewed: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        ids = retry_transient(partial(_renew_free, group, token, until, using), using=using)
        renewed += [lease for lease in group if lease.job_id in ids]
    return renewed


def _renew_free(group: Sequence[Lease], token: bytes, until: UtcNowPlus, using: str) -> set[int]:
    with vendor(using).transaction(connections[using]):
        if ids := free_ids(group, token, using):
            mine = in_state(ids, Job.Status.PROCESSING, using=using).filter(lock_token=token)
            living = mine.filter(lock_until__gt=UtcNow())
            if _extend(living, until)() < len(ids):
                ids = list(living.values_list("pk", flat=True))
        return set(ids)


def _until(lease_seconds: float) -> UtcNowPlus:
    seconds = check_seconds(lease_seconds, "lease_seconds")
    longer = Greatest(Coalesce(F("lease_seconds"), seconds), seconds)
    return UtcNowPlus(Least(longer, Value(float(SECONDS_MAX))))


def _extend(rows: JobQuerySet, until: UtcNowPlus) -> Callable[[], int]:
    return lambda: rows.update(lock_until=until, updated_at=UtcNow())


def note_progress(lease: Lease, progress: JSON) -> bool:
    """Store how far the job is. One statement. False when the lease is no longer held; nothing was written."""
    changes: dict[str, Any] = {"progress": progress, "updated_at": UtcNow()}
    return bool(retry_transient(lambda: held(lease).update(**changes), using=lease.using))
