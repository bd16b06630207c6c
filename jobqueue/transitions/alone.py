"""A job that is run by itself, in a process of its own: FAILED, CANCELED or held -> PROCESSING, out of turn."""

from __future__ import annotations

import uuid

from django.db import connections, transaction

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job
from jobqueue.models.job import HELD_GATE
from jobqueue.transitions.claiming.request import Request, Row
from jobqueue.transitions.claiming.select_then_update import lock_rows, stamp
from jobqueue.transitions.leases import Lease, lease_of
from jobqueue.transitions.operator import make_due
from jobqueue.validation import check_id, check_seconds


def claim_alone(
    job_id: int | str, *, worker: str, lease_seconds: float = 60.0, using: str | None = None
) -> Lease | None:
    """retry() a job and claim it in the same transaction, so that no worker takes it in between.

    A job that has ended gets one attempt: after a failure or a crash it is FAILED again. None if the job is not FAILED,
    CANCELED or held, if another live job has its dedupe key, or if earlier jobs of its ordering key come first.
    """
    number, alias = check_id(job_id), alias_of(using)
    check_seconds(lease_seconds, "lease_seconds")
    # The same token at each try: an earlier one may have been committed without an answer.
    token = uuid.uuid4().bytes
    return retry_transient("claim", lambda: _claim(number, worker, lease_seconds, alias, token), using=alias)


def _claim(job_id: int, worker: str, lease_seconds: float, using: str, token: bytes) -> Lease | None:
    rows = Job.objects.using(using).filter(pk=job_id)
    with vendor(using).transaction(connections[using]):
        job: Job | None = rows.defer("payload", "result", "last_error").select_for_update().first()
        if job is None:
            return None
        if job.lock_token == token:
            return lease_of(job, using)._replace(payload=job.payload)
        ended = job.status in (Job.Status.FAILED, Job.Status.CANCELED)
        if not (ended or (job.status == Job.Status.READY and job.gate == HELD_GATE)) or not make_due(job, using):
            return None
        ready = rows.filter(status=Job.Status.READY, gate=0)
        if ended:
            ready.update(max_attempts=job.attempts + 1)
        request = Request(job.queue, 1, 1, worker, lease_seconds, using)
        leases = stamp([request.lease(Row._make(row), token) for row in lock_rows(ready, 1, using)], token, request)
        if not leases:
            # It waits for its ordering key: nothing is changed.
            transaction.set_rollback(True, using=using)
            return None
        return leases[0]
