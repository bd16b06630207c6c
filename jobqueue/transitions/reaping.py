"""PROCESSING -> READY or FAILED when a lease ran out: its holder died, froze or lost the database."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import JobLost
from jobqueue.failures import FailureCause, describe
from jobqueue.models import Job, JobAttempt
from jobqueue.models.rows import in_state
from jobqueue.ordering.promote import promote_next
from jobqueue.signals import job_canceled, job_dead, job_reaped, send
from jobqueue.transitions.earlier_tries import charged_fences
from jobqueue.transitions.failing import attempt_row, failed_columns, one_more
from jobqueue.transitions.leases import Lease, canceled, lease_of
from jobqueue.validation import check_int


@dataclass(frozen=True, slots=True)
class Reaped:
    """How many lapsed leases one pass ended, by what became of the job."""

    requeued: int = 0
    dead: int = 0
    canceled: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.requeued + self.dead + self.canceled

    def __add__(self, other: Reaped) -> Reaped:
        """Those of two passes."""
        return Reaped(self.requeued + other.requeued, self.dead + other.dead, self.canceled + other.canceled)


def reap(limit: int = 1000, *, using: str | None = None) -> Reaped:
    """End up to `limit` leases that have run out, oldest first: attempts + 1, READY at once or FAILED at max_attempts.

    run_at is unchanged. Any number of reapers may run at once: each takes rows no other has locked. One call is
    one bounded transaction; call again while it returns as many as `limit`.
    """
    check_int(limit, "limit", 1, 100_000)
    alias = alias_of(using)
    tries: list[dict[Job.Status, list[Lease]]] = []
    outcomes = retry_transient(partial(_reap, limit, alias, tries), using=alias)
    for status, leases in outcomes.items():
        promote_next(((lease.queue, lease.ordering_key) for lease in leases), using=alias)
        for lease in leases:
            _announce(lease, status)
    sizes = {status: len(leases) for status, leases in outcomes.items()}
    return Reaped(
        requeued=sizes.get(Job.Status.READY, 0),
        dead=sizes.get(Job.Status.FAILED, 0),
        canceled=sizes.get(Job.Status.CANCELED, 0),
    )


def _reap(limit: int, using: str, tries: list[dict[Job.Status, list[Lease]]]) -> dict[Job.Status, list[Lease]]:
    """What became of the leases that ended, by earlier `tries` too: one may have been committed without an answer."""
    outcomes: dict[Job.Status, list[Lease]] = defaultdict(list)
    before = _committed(tries, using)
    found = vendor(using)
    with found.transaction(connections[using]):
        expired = found.force_index(Job.objects.using(using).expired().order_by("lock_until"), "ix_lease")
        rows = found.lock_rows(expired.defer("payload", "result", "last_error"))[:limit]
        for job in rows:
            outcomes[_next_status(job)].append(lease_of(job, using))
        for status, leases in outcomes.items():
            for worker, theirs in _by_worker(leases).items():
                _write(status, worker, theirs, using)
        tries.append(outcomes)
    for status, leases in before.items():
        outcomes[status] = leases + outcomes[status]
    return outcomes


def _committed(tries: list[dict[Job.Status, list[Lease]]], using: str) -> dict[Job.Status, list[Lease]]:
    """Those of the `tries` that are on record."""
    found: dict[Job.Status, list[Lease]] = defaultdict(list)
    for outcomes in tries:
        charged = charged_fences(chain.from_iterable(outcomes.values()), using=using) if outcomes else set()
        for status, leases in outcomes.items():
            found[status] += [lease for lease in leases if (lease.job_id, lease.fence) in charged]
    return found


def _by_worker(leases: list[Lease]) -> dict[str, list[Lease]]:
    groups: dict[str, list[Lease]] = defaultdict(list)
    for lease in leases:
        groups[lease.worker].append(lease)
    return groups


def _next_status(job: Job) -> Job.Status:
    if job.cancel_requested_at is not None:
        return Job.Status.CANCELED
    return Job.Status.FAILED if job.attempts + 1 >= job.max_attempts else Job.Status.READY


def _write(status: Job.Status, worker: str, leases: list[Lease], using: str) -> None:
    error = JobLost(
        f"the lease of worker {worker} ran out without an answer: the process died, froze or lost the database. "
        "The attempt counts; the job runs again while attempts are left."
    )
    text = describe(error)
    changes: dict[str, Any] = failed_columns(text, FailureCause.LOST, one_more("attempts"))
    if status is Job.Status.READY:
        changes |= {"status": status, "wait_reason": "its last worker's lease ran out"}
    elif status is Job.Status.FAILED:
        changes |= {"status": status, "finished_at": UtcNow(), "wait_reason": None}
    else:
        changes |= canceled()
    ids = [lease.job_id for lease in leases]
    # Status and lapse again in the WHERE: not every database kept these rows locked since they were read.
    in_state(ids, Job.Status.PROCESSING, using=using).filter(lock_until__lt=UtcNow()).update(**changes)
    history = [attempt_row(lease, error, FailureCause.LOST, text) for lease in leases]
    JobAttempt.objects.using(using).bulk_create(history, batch_size=500)


def _announce(lease: Lease, status: Job.Status) -> None:
    facts: dict[str, Any] = {"job_id": lease.job_id, "queue": lease.queue, "task": lease.task, "using": lease.using}
    send(job_reaped, Job, **facts, attempt=lease.attempt, worker=lease.worker)
    if status is Job.Status.FAILED:
        send(job_dead, Job, **facts, attempt=lease.attempt, worker=lease.worker, cause=FailureCause.LOST)
    elif status is Job.Status.CANCELED:
        send(job_canceled, Job, **facts)
