"""Leases for tests: take the lease of a given job, and let a lease expire."""

from __future__ import annotations

import uuid

from django.db import connections

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidValue
from jobqueue.models import Job
from jobqueue.transitions.claiming.request import Request, Row
from jobqueue.transitions.claiming.select_then_update import lock_rows, stamp
from jobqueue.transitions.leases import Lease
from jobqueue.validation import check_id

WORKER = "jobqueue.testing"
LEASE_SECONDS = 60.0


def id_of(job: object) -> int:
    """The job id in a Lease, a Job, a TaskResult, or given as int or str. Raises InvalidType for anything else."""
    for name in ("job_id", "pk", "id"):
        if hasattr(job, name):
            return check_id(getattr(job, name))
    return check_id(job)


def expire_lease(job: object, *, using: str | None = None) -> None:
    """Let the lease of a job expire now, as if its worker had died; reap() and drain() then give the job back.

    `job` is a Lease, a Job, a TaskResult or an id. Raises InvalidValue if the job has no lease.
    """
    alias = using or getattr(job, "using", None) or load().database
    rows = Job.objects.using(alias).filter(pk=id_of(job))
    if not rows.leased().update(lock_until=UtcNowPlus(-1.0)):
        found = rows.values_list("status", flat=True).first()
        state = "not in the table" if found is None else Job.Status(found).name
        raise InvalidValue(f"job {id_of(job)} is {state}, so it has no lease that could expire.")


def take_lease(job_id: int, *, using: str, attempt: int | None = None) -> Lease | None:
    """A lease on this job, whatever else is due; None if it is not READY. claim() would take the first due job."""
    ready = Job.objects.using(using).filter(pk=job_id, status=Job.Status.READY)
    if attempt is not None:
        ready.update(attempts=attempt - 1)
    queue = ready.values_list("queue", flat=True).first()
    if queue is None:
        return None
    request, token = Request(queue, 1, 1, WORKER, LEASE_SECONDS, using), uuid.uuid4().bytes
    with vendor(using).transaction(connections[using]):
        leases = [request.lease(Row._make(row), token) for row in lock_rows(ready, 1, using)]
        return next(iter(stamp(leases, token, request)), None)
