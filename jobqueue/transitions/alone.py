"""A job that is run by itself, in a process of its own: FAILED, CANCELED or held -> PROCESSING, out of turn."""

from __future__ import annotations

import uuid
from functools import partial

from django.db import connections, transaction

from jobqueue.base.validation import check_id, check_seconds
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import JobQueueError
from jobqueue.gates.admit import admit, make_room, room_in
from jobqueue.gates.limits import limits_at
from jobqueue.gates.rules import Rules, rules_to_start_by
from jobqueue.models import Job
from jobqueue.models.job import HELD_GATE
from jobqueue.transitions.claiming.plans import LockAndStamp, Row
from jobqueue.transitions.claiming.select_then_update import lock_rows, stamp
from jobqueue.transitions.leases import Lease, lease_of
from jobqueue.transitions.operator import make_due


class HeldBack(JobQueueError):
    """The job may not start now: of a limit, a pause or a breaker."""

    def __init__(self, job_id: int, why: str) -> None:
        super().__init__(f"job {job_id} may not start now: {why}. Nothing was changed; try again when it may start.")
        self.why = why


def claim_alone(
    job_id: int | str, *, worker: str, lease_seconds: float = 60.0, using: str | None = None
) -> Lease | None:
    """retry() a job and claim it in the same transaction, so that no worker takes it in between.

    A job that has ended gets one attempt: after a failure or a crash it is FAILED again. None if the job is not FAILED,
    CANCELED or held, if another live job has its dedupe key, or if earlier jobs of its ordering key come first. Raises
    HeldBack, and changes nothing, while a limit, a pause or a breaker keeps it from starting.
    """
    number, alias = check_id(job_id), alias_of(using)
    check_seconds(lease_seconds, "lease_seconds")
    # The same token at each try: an earlier one may have been committed without an answer.
    token = uuid.uuid4().bytes
    retry_transient("claim", partial(_make_room, number, alias), using=alias)
    return retry_transient("claim", partial(_claim, number, worker, lease_seconds, alias, token), using=alias)


def _make_room(job_id: int, using: str) -> None:
    queue = Job.objects.using(using).filter(pk=job_id).values_list("queue", flat=True).first()
    if queue is not None and not limits_at(queue, rules_to_start_by(using)).none:
        make_room(queue, using)


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
        # Read when the row is locked: the wait for it may have been long.
        known = rules_to_start_by(using)
        leases = _start(
            list(map(Row._make, lock_rows(ready, 1, using))), job, worker, lease_seconds, token, known, using
        )
        if not leases:
            # It waits for its ordering key: nothing is changed.
            transaction.set_rollback(True, using=using)
            return None
        return leases[0]


def _start(
    rows: list[Row], job: Job, worker: str, lease_seconds: float, token: bytes, known: Rules, using: str
) -> list[Lease]:
    """Lease them if a claim might: there is room in the queue, a slot and a token, and no pause or open breaker."""
    limits, queue = limits_at(job.queue, known), job.queue
    if limits.paused:
        raise HeldBack(job.pk, f"queue {queue} is paused")
    room = None
    if not limits.none:
        room = room_in(queue, 1, limits, using)
        if not room.jobs:
            raise HeldBack(job.pk, f"the limit of queue {queue} is used up")
    found = admit(rows, 1, queue=queue, known=known, paced_max=None, using=using)
    if found.blocked:
        raise HeldBack(job.pk, f"it would wait: {found.blocked[0].subject.wait_reason}")
    plan = LockAndStamp(queue, 1, 1, worker, lease_seconds, using)
    started = [plan.lease(row, token, slot=found.slots.get(row.pk)) for row in rows if row.pk in found.free]
    leases = stamp(started, token, plan)
    if room is not None:
        room.use(len(leases), using)
    return leases
