"""Leases for tests: taken on a certain job, and run out."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import F

from jobqueue.conf import load
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.exceptions import InvalidValue
from jobqueue.models import Job
from jobqueue.transitions.leases import Lease, lease_of
from jobqueue.validation import check_job_id

WORKER = "jobqueue.testing"
LEASE_SECONDS = 60.0


def id_of(job: Any) -> int:
    """The id in a Lease, a Job, a TaskResult, or given as int or str."""
    for name in ("job_id", "pk", "id"):
        if hasattr(job, name):
            return check_job_id(getattr(job, name))
    return check_job_id(job)


def expire_lease(job: Any, *, using: str | None = None) -> None:
    """Let the lease of a job run out now, as if its worker had died a while ago; reap() and drain() take it then.

    `job` is a Lease, a Job, a TaskResult or an id. Raises InvalidValue if nobody holds the job.
    """
    alias = using or getattr(job, "using", None) or load().database
    rows = Job.objects.using(alias).filter(pk=id_of(job))
    if not rows.leased().update(lock_until=UtcNowPlus(-1.0)):
        found = rows.values_list("status", flat=True).first()
        state = "not in the table" if found is None else Job.Status(found).name
        raise InvalidValue(f"job {id_of(job)} is {state}: nobody holds a lease that could run out.")


def take_lease(job_id: int, *, using: str, attempt: int | None = None) -> Lease | None:
    """A lease on this very job, whatever else is due, or None if it is not READY. claim() takes what comes first."""
    rows = Job.objects.using(using).filter(pk=job_id)
    earlier = F("attempts") if attempt is None else attempt - 1
    taken = rows.filter(status=Job.Status.READY).update(
        status=Job.Status.PROCESSING,
        attempts=earlier,
        locked_by=WORKER,
        last_worker=WORKER,
        lock_token=uuid.uuid4().bytes,
        locked_at=UtcNow(),
        last_started_at=UtcNow(),
        updated_at=UtcNow(),
        lock_until=UtcNowPlus(LEASE_SECONDS),
        fence=F("fence") + 1,
        wait_reason=None,
    )
    if not taken:
        return None
    job = rows.get()
    granted = max(job.lease_seconds or 0.0, LEASE_SECONDS)
    return lease_of(job, using)._replace(payload=job.payload, lease_seconds=granted)
