"""A lease: the right to run one job until a moment of the database's clock; and how it is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import F, Value
from django.db.models.functions import Coalesce, Greatest, Least

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.fields import LONG_AGO
from jobqueue.db.our_tables import our_tables
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import LeaseLost
from jobqueue.models import Job
from jobqueue.models.querysets import JobQuerySet
from jobqueue.names import INT_MAX, SECONDS_MAX, check_seconds
from jobqueue.payload import JSON
from jobqueue.signals import lease_lost, send
from jobqueue.transitions.rows import in_state

#: what ends a lease; every verb that leaves PROCESSING writes it
RELEASED: dict[str, Any] = {"locked_by": None, "lock_token": None, "locked_at": None, "lock_until": None}


class Lease(NamedTuple):
    """One claimed job, as its holder knows it. Proves ownership by (job_id, token)."""

    # Made for every job: a frozen dataclass of so many fields takes six times as long.

    job_id: int
    token: bytes
    fence: int
    attempt: int
    payload: JSON
    lock_until: datetime
    queue: str
    task: str | None
    max_attempts: int
    worker: str
    locked_at: datetime
    run_at: datetime
    created_at: datetime
    lease_seconds: float
    using: str
    options: JSON = None
    ordering_key: bytes | None = None
    expires_at: datetime | None = None


def held(lease: Lease) -> JobQuerySet:
    """The job's row if `lease` still holds it: the guard of every settling statement."""
    return in_state([lease.job_id], Job.Status.PROCESSING, using=lease.using).filter(lock_token=lease.token)


def held_by(worker: str, *, using: str) -> list[Lease]:
    """Every lease that `worker` holds now, by index ix_worker, ids ascending; payloads are left out (None)."""
    rows = Job.objects.using(using).filter(locked_by=worker, status=Job.Status.PROCESSING).order_by("id")
    with our_tables(using):
        return [lease_of(job, using) for job in rows.defer("payload", "result", "last_error")]


def held_of(keys: Collection[tuple[int, int]], *, worker: str, using: str) -> list[Lease]:
    """Those of the leases (job id, fence) that `worker` holds now, ids ascending; payloads are left out (None).

    For whoever knows what to ask for: by id it costs the same however many leases the worker has had.
    """
    # By id alone: ix_worker and ix_lease keep an entry of every lease there was since the oldest open snapshot.
    rows = Job.objects.using(using).filter(pk__in=sorted(job_id for job_id, _ in keys)).order_by("id")
    with our_tables(using):
        found = list(rows.defer("payload", "result", "last_error"))
    held = [job for job in found if (job.status, job.locked_by) == (Job.Status.PROCESSING, worker)]
    return [lease_of(job, using) for job in held if (job.pk, job.fence) in keys]


def lease_of(job: Job, using: str) -> Lease:
    """The lease written on a PROCESSING row, without its payload.

    Drivers of MySQL give None for 0000-00-00, which plain SQL may have written. Like a claim, who reads a lease must be
    able to read every row: one that it cannot read would keep all others from being reaped.
    """
    assert job.lock_token is not None
    lock_until = job.lock_until or LONG_AGO
    return Lease(
        job_id=job.pk,
        token=job.lock_token,
        fence=job.fence,
        attempt=min(job.attempts + 1, INT_MAX),
        payload=None,
        lock_until=lock_until,
        queue=job.queue,
        task=job.task,
        max_attempts=job.max_attempts,
        worker=job.locked_by or "",
        locked_at=job.locked_at or lock_until,
        run_at=job.run_at or LONG_AGO,
        created_at=job.created_at or LONG_AGO,
        lease_seconds=job.lease_seconds or 0.0,
        using=using,
        ordering_key=job.ordering_key,
        expires_at=job.expires_at,
    )


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
    """heartbeat_many() for a keeper: leases whose rows somebody has locked are left for the next time; the others.

    Those that are surely held for lease_seconds from now are returned.

    Such a row is being settled, or its job is inside finish(). Nobody can reap it meanwhile, and whoever waited for it
    would not renew the others.
    """
    until = _until(lease_seconds)
    renewed: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        ids = retry_transient(partial(_renew_free, group, token, until, using), using=using)
        renewed += [lease for lease in group if lease.job_id in ids]
    return renewed


def _renew_free(group: Sequence[Lease], token: bytes, until: UtcNowPlus, using: str) -> set[int]:
    with vendor(using).transaction(connections[using]):
        if ids := _free_ids(group, token, using):
            mine = in_state(ids, Job.Status.PROCESSING, using=using).filter(lock_token=token)
            living = mine.filter(lock_until__gt=UtcNow())
            if _extend(living, until)() < len(ids):
                ids = list(living.values_list("pk", flat=True))
        return set(ids)


def free_of(leases: Iterable[Lease]) -> list[Lease]:
    """Those of `leases` that are held and whose rows nobody has locked at this moment."""
    found: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        ids = retry_transient(partial(_look_for_free, group, token, using), using=using)
        found += [lease for lease in group if lease.job_id in ids]
    return found


def _look_for_free(group: Sequence[Lease], token: bytes, using: str) -> set[int]:
    with vendor(using).transaction(connections[using]):
        return set(_free_ids(group, token, using))


def _free_ids(group: Sequence[Lease], token: bytes, using: str) -> list[int]:
    """Locked by this transaction now."""
    ids = [lease.job_id for lease in group]
    rows = in_state(ids, Job.Status.PROCESSING, using=using).filter(lock_token=token).order_by("pk")
    return list(vendor(using).lock_rows(rows).values_list("pk", flat=True))


def _until(lease_seconds: float) -> UtcNowPlus:
    seconds = check_seconds(lease_seconds, "lease_seconds")
    longer = Greatest(Coalesce(F("lease_seconds"), seconds), seconds)
    return UtcNowPlus(Least(longer, Value(float(SECONDS_MAX))))


def _extend(rows: JobQuerySet, until: UtcNowPlus) -> Any:
    return lambda: rows.update(lock_until=until, updated_at=UtcNow())


def note_progress(lease: Lease, progress: JSON) -> bool:
    """Store how far the job is. One statement; False, and nothing was written, when the lease is not held any more."""
    changes: dict[str, Any] = {"progress": progress, "updated_at": UtcNow()}
    return bool(retry_transient(lambda: held(lease).update(**changes), using=lease.using))


def by_token(leases: Iterable[Lease]) -> dict[tuple[str, bytes], list[Lease]]:
    """`leases` grouped by database and token, ids ascending: an id is only ever settled under its own token."""
    groups: dict[tuple[str, bytes], list[Lease]] = defaultdict(list)
    for lease in sorted(leases, key=lambda lease: lease.job_id):
        groups[lease.using, lease.token].append(lease)
    return groups


def lost(lease: Lease, verb: str) -> LeaseLost:
    """Tell the receivers of lease_lost; the LeaseLost for the caller to raise."""
    send(
        lease_lost,
        Job,
        job_id=lease.job_id,
        queue=lease.queue,
        task=lease.task,
        attempt=lease.attempt,
        worker=lease.worker,
        verb=verb,
        using=lease.using,
    )
    return LeaseLost(lease.job_id, verb)
