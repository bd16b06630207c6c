"""What people do to jobs: cancel, discard, retry, and release of somebody else's lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError, connections, transaction

from jobqueue import wakeup
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import LeaseLost
from jobqueue.models import Job
from jobqueue.models.rows import in_state
from jobqueue.ordering.promote import promote_next
from jobqueue.signals import job_canceled, send
from jobqueue.transitions.leases import RELEASED, canceled, lease_of
from jobqueue.transitions.resuming import return_to_lane
from jobqueue.transitions.settling import release
from jobqueue.validation import INT_MAX, check_job_id


def cancel(job_id: int | str, *, using: str | None = None) -> bool:
    """READY -> CANCELED. A running job is asked to stop: its context's should_stop turns true with the next heartbeat.

    True if the job was canceled or asked; False if it does not exist or has finished.
    """
    return _operate(job_id, using, _cancel)


def discard(job_id: int | str, *, using: str | None = None) -> bool:
    """READY or FAILED -> CANCELED: taken out of the dead letters. False in any other state."""
    return _operate(job_id, using, _discard)


def retry(job_id: int | str, *, using: str | None = None) -> bool:
    """FAILED or CANCELED -> READY with a fresh allowance of attempts; READY but delayed -> due now.

    `attempts` stays, max_attempts grows, expires_at is forgotten. False in any other state, and while another live job
    holds the dedupe key this job once had. A job with an ordering key runs at its old place in the order if that still
    waits for it, else after those that are there now.
    """
    return _operate(job_id, using, _retry)


def release_held(job_id: int | str, *, using: str | None = None) -> bool:
    """PROCESSING -> READY for an operator: takes the lease away, without using an attempt; its holder's ack is refused.

    False if the job is not running or its lease changed hands meanwhile.
    """
    alias = alias_of(using)
    running = _rows(check_job_id(job_id), alias).filter(status=Job.Status.PROCESSING)
    with explain_missing_table(alias):
        job: Job | None = retry_transient(running.first, using=alias)
    if job is None:
        return False
    try:
        release(lease_of(job, alias))
    except LeaseLost:
        return False
    wakeup.notify(job.queue, alias)
    return True


@dataclass(slots=True)
class _Written:
    """What one try wrote: the column that keeps the instant of the write, and that instant.

    No other write of the job has both; so a try after a lost answer tells its own work by them.
    """

    column: str = ""
    instant: datetime | None = None


def _operate(job_id: int | str, using: str | None, change: Callable[[Job, str], str | None]) -> bool:
    """Let `change` write one row, found by its id and locked; whether it did. It returns the column of its instant."""
    number, alias = check_job_id(job_id), alias_of(using)
    written = _Written()

    def write() -> Job | None:
        with vendor(alias).transaction(connections[alias]):
            job: Job | None = _rows(number, alias).select_for_update().first()
            if job is None or (written.instant and getattr(job, written.column) == written.instant):
                return job
            written.column, written.instant = change(job, alias) or "", None
            if not written.column:
                return None
            written.instant = _rows(number, alias).values_list(written.column, flat=True).get()
            return job

    changed = retry_transient(write, using=alias)
    if changed is None:
        return False
    _tell(changed, written.column, alias)
    return True


def _tell(job: Job, column: str, using: str) -> None:
    if column == "finished_at":
        send(job_canceled, Job, job_id=job.pk, queue=job.queue, task=job.task, using=using)
    elif column == "run_at":
        wakeup.notify(job.queue, using)
    promote_next([(job.queue, job.ordering_key)], using=using)


def _rows(job_id: int, using: str) -> Any:
    return Job.objects.using(using).filter(pk=job_id).defer("payload", "result", "last_error")


def _cancel(job: Job, using: str) -> str | None:
    if job.status == Job.Status.PROCESSING:
        asked = _write(job, using, cancel_requested_at=UtcNow(), updated_at=UtcNow())
        return "cancel_requested_at" if asked else None
    return _end(job, using) if job.status == Job.Status.READY else None


def _discard(job: Job, using: str) -> str | None:
    return _end(job, using) if job.status in (Job.Status.READY, Job.Status.FAILED) else None


def _end(job: Job, using: str) -> str | None:
    return "finished_at" if _write(job, using, **canceled()) else None


def _retry(job: Job, using: str) -> str | None:
    return "run_at" if _make_due(job, using) else None


def _make_due(job: Job, using: str) -> bool:
    if job.status == Job.Status.READY:
        if job.run_at <= read_now(using):
            return False
        reason = job.wait_reason if job.gate else None
        return _write(job, using, run_at=UtcNow(), updated_at=UtcNow(), wait_reason=reason)
    if job.status not in (Job.Status.FAILED, Job.Status.CANCELED):
        return False
    keys: dict[str, Any] = {}
    if job.released_key is not None:
        if not _take_key_back(job, using):
            return False
        keys = {"dedupe_key": job.released_key, "released_key": None}
    allowance = job.allowance or job.max_attempts
    changes = {
        "status": Job.Status.READY,
        "run_at": UtcNow(),
        "updated_at": UtcNow(),
        "finished_at": None,
        "cancel_requested_at": None,
        "expires_at": None,
        "wait_reason": None,
        "allowance": allowance,
        "max_attempts": min(INT_MAX, job.attempts + allowance),
        "epoch": job.epoch + 1,
        **keys,
        **RELEASED,
    }
    try:
        with transaction.atomic(using=using):
            if job.ordering_key is not None:
                changes |= return_to_lane(job, using)
            done = _write(job, using, **changes)
            if not done:
                transaction.set_rollback(True, using=using)
            return done
    except IntegrityError:
        # An enqueue of the same key was committed since we looked.
        return False


def _take_key_back(job: Job, using: str) -> bool:
    """Free the key this job once had from a finished job; False while a live one holds it."""
    # A locking read waits for an enqueue of this key that is under way.
    rows = Job.objects.using(using).filter(queue=job.queue, dedupe_key=job.released_key)
    for holder_id, status in rows.select_for_update().values_list("pk", "status"):
        if status in (Job.Status.READY, Job.Status.PROCESSING):
            return False
        freed = {"dedupe_key": None, "released_key": job.released_key, "updated_at": UtcNow()}
        in_state([holder_id], status, using=using).update(**freed)
    return True


def _write(job: Job, using: str, **changes: Any) -> bool:
    # The state again in the WHERE: the row lock is what makes it rarely false, not what makes it right.
    return bool(in_state([job.pk], job.status, using=using).filter(fence=job.fence).update(**changes))
