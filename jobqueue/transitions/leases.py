"""A lease: the right to run one job until an instant of the database's clock. Guards, and what is known of leases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from django.db import connections, transaction

from jobqueue.base.payload import JSON
from jobqueue.base.validation import INT_MAX
from jobqueue.db import vendor
from jobqueue.db.alias import explain_missing_table
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.clock import UtcNow
from jobqueue.db.expressions import Unestimated
from jobqueue.db.fields import LONG_AGO
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidType, LeaseLost
from jobqueue.gates.limits import slot_subject
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.models.rows import in_state
from jobqueue.signals import lease_lost, send

#: what ends a lease; every verb that leaves PROCESSING writes it
RELEASED: dict[str, object] = {"locked_by": None, "lock_token": None, "locked_at": None, "lock_until": None}


class Lease(NamedTuple):
    """One claimed job, as its holder knows it. (job_id, token) proves ownership."""

    # A NamedTuple, because one is made for every job: a frozen dataclass of this size takes six times as long.

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
    dependency: str | None = None  # of a claim, only in a project that has DEPENDENCIES
    slot: int | None = None  # the subject of the slot that it has: jobqueue.gates


def check_lease(lease: object) -> Lease:
    """`lease` if it is one, with an id and a token of the right types. Raises InvalidType."""
    if not isinstance(lease, Lease):
        raise InvalidType(
            f"a lease must be a Lease, as claim() returns it, got {type(lease).__name__}. Nothing was written."
        )
    if type(lease.job_id) is not int or type(lease.token) is not bytes:
        raise InvalidType(
            f"a lease has an int as job_id and bytes as token, got {type(lease.job_id).__name__} and "
            f"{type(lease.token).__name__}. Nothing was written; keep both as claim() returned them."
        )
    return lease


def check_leases(leases: object) -> list[Lease]:
    """`leases` as a list. Raises InvalidType unless it has leases only."""
    # A lease is a tuple, of its fields.
    if isinstance(leases, Lease) or not isinstance(leases, Iterable):
        raise InvalidType(f"leases must be a list of leases, got {type(leases).__name__}. Nothing was written.")
    found = list(leases)
    for lease in found:
        check_lease(lease)
    return found


def canceled() -> dict[str, object]:
    """The columns of a job that ends CANCELED, from any state."""
    return {
        "status": Job.Status.CANCELED,
        "finished_at": UtcNow(),
        "updated_at": UtcNow(),
        "wait_reason": None,
        **RELEASED,
    }


def held(lease: Lease) -> JobQuerySet:
    """The job's row if `lease` still holds it: the guard of every settling statement."""
    return in_state([lease.job_id], Job.Status.PROCESSING, using=lease.using).filter(lock_token=lease.token)


def held_by(worker: str, *, using: str) -> list[Lease]:
    """Every lease that `worker` holds now, by index ix_worker, ids ascending; payloads are left out (None)."""
    rows = Job.objects.using(using).filter(locked_by=worker, status=Unestimated(Job.Status.PROCESSING)).order_by("id")
    with explain_missing_table(using):
        return [lease_of(job, using) for job in rows.defer("payload", "result", "last_error")]


def lease_of(job: Job, using: str) -> Lease:
    """The lease written on a PROCESSING row, without its payload.

    Every row must be readable, because one unreadable row would stop the reaping of all others. MySQL drivers return
    None for 0000-00-00, which plain SQL may have written.
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
        options=job.options,
        ordering_key=job.ordering_key,
        expires_at=job.expires_at,
        dependency=job.dependency,
        # It may have none: then nobody waits for it.
        slot=slot_subject(job.queue, job.task, job.concurrency_key).number if job.task else None,
    )


def free_of(leases: Iterable[Lease]) -> list[Lease]:
    """Those of `leases` that are held and whose rows no other transaction has locked at this moment."""
    found: list[Lease] = []
    for (using, token), group in by_token(leases).items():
        ids = retry_transient("settle", partial(_look_for_free, group, token, using), using=using)
        found += [lease for lease in group if lease.job_id in ids]
    return found


def _look_for_free(group: Sequence[Lease], token: bytes, using: str) -> set[int]:
    ids = [lease.job_id for lease in group]
    rows = in_state(ids, Job.Status.PROCESSING, using=using).filter(lock_token=token).order_by("pk")
    with vendor(using).transaction(connections[using]):
        return set(vendor(using).lock_rows(rows).values_list("pk", flat=True))


def can_skip_locked(using: str) -> bool:
    """Whether locked rows can be skipped now: not in a caller's transaction, nor where there are no row locks."""
    return not in_callers_transaction(connections[using]) and not vendor(using).single_writer


def is_locked(lease: Lease) -> bool:
    """Whether `lease` holds the job and another transaction has locked its row at this moment."""
    if not can_skip_locked(lease.using):
        return False

    def look() -> bool:
        with vendor(lease.using).transaction(connections[lease.using]):
            free = bool(vendor(lease.using).lock_rows(held(lease)).values_list("pk", flat=True))
            # A commit would wait for the disk on PostgreSQL.
            transaction.set_rollback(True, using=lease.using)
        return not free and held(lease).exists()

    return retry_transient("settle", look, using=lease.using)


def touch(lease: Lease) -> None:
    """Write updated_at of the job's row if `lease` holds it, to find out whether a small write is answered.

    Raises what the database raises, and DatabaseBusy.
    """
    retry_transient("settle", lambda: held(lease).update(updated_at=UtcNow()), using=lease.using)


def by_token(leases: Iterable[Lease]) -> dict[tuple[str, bytes], list[Lease]]:
    """`leases` grouped by database and token, ids ascending: an id is only settled under its own token."""
    groups: dict[tuple[str, bytes], list[Lease]] = defaultdict(list)
    for lease in sorted(check_leases(leases), key=lambda lease: lease.job_id):
        groups[lease.using, lease.token].append(lease)
    return groups


def lost(lease: Lease, verb: str) -> LeaseLost:
    """Send lease_lost; returns the LeaseLost for the caller to raise.

    At once: nothing was written, and what is raised rolls the caller's transaction back.
    """
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
