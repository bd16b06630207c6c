"""PROCESSING -> READY or FAILED after a failed attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections
from django.db.models import F
from django.db.models.functions import Least

from jobqueue.backoff import Backoff
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidType
from jobqueue.failures import FailureCause, class_path, classify, describe, is_permanent, storable, summary
from jobqueue.models import Job, JobAttempt
from jobqueue.ordering.promote import promote_next
from jobqueue.signals import job_canceled, job_dead, job_failed, send
from jobqueue.transitions.leases import RELEASED, Lease, canceled, held, lost
from jobqueue.validation import INT_MAX, check_seconds


def fail(
    lease: Lease,
    *,
    error: str | BaseException,
    delay_seconds: float | None = None,
    retry: bool = True,
    log: str | None = None,
    again: bool = False,
) -> Job.Status:
    """Record a failed attempt; READY after the back-off, or FAILED when it was the last one (or may not be retried).

    The first run of a life that was lost (JobLost) has no back-off: READY at once, run_at unchanged, as after reap().
    `delay_seconds` overrides all that; without `retry` it is the last attempt in any case. A job that was asked to
    cancel ends CANCELED instead. The attempt is kept in JobAttempt, with the lines it has logged, in the same
    transaction. `again`: an earlier call with this lease ended in an error and may have been committed all the same; if
    it was, that is the answer. Raises LeaseLost when another holder took over, InvalidType and InvalidValue for bad
    arguments; nothing was written.
    """
    _check(error, delay_seconds)
    status = _fail(lease, error, delay_seconds, retry=retry, log=log, again=again)
    if status is None:
        raise lost(lease, "fail")
    return status


def fail_many(
    leases: Sequence[Lease], *, error: str | BaseException, delay_seconds: float | None = None
) -> list[Lease]:
    """fail() for each lease; returns those that were lost and never raises for them."""
    _check(error, delay_seconds)
    gone = []
    for lease in sorted(leases, key=lambda lease: lease.job_id):
        if _fail(lease, error, delay_seconds) is None:
            lost(lease, "fail")
            gone.append(lease)
    return gone


def _check(error: object, delay_seconds: object) -> None:
    if not isinstance(error, (str, BaseException)):
        raise InvalidType(f"error must be a str or an exception, got {type(error).__name__}. Nothing was written.")
    if delay_seconds is not None:
        check_seconds(delay_seconds, "delay_seconds", zero=True)


def default_backoff() -> Backoff:
    """The back-off of JOBQUEUE."""
    settings = load()
    return Backoff(settings.backoff_base_seconds, settings.backoff_factor, settings.backoff_cap_seconds)


def failed_columns(text: str, cause: FailureCause, attempts: Any) -> dict[str, Any]:
    """What every failed attempt writes, whatever state follows."""
    changes = {"attempts": attempts, "last_error": text, "cause": cause.value, "updated_at": UtcNow()}
    if cause is FailureCause.LOST:
        changes["crashes"] = one_more("crashes")
    return changes | RELEASED


def one_more(column: str) -> Any:
    """The count in `column` plus one. What plain SQL may have put there must not end the reaping of other rows."""
    return Least(F(column), INT_MAX - 1) + 1


def _next(lease: Lease, error: str | BaseException, delay: float | None, retry: bool) -> dict[str, Any]:
    """The columns of what follows: another attempt after `delay` (None: run_at stays), or the end."""
    if not retry or lease.attempt >= lease.max_attempts or is_permanent(error):
        return {"status": Job.Status.FAILED, "finished_at": UtcNow(), "wait_reason": None}
    note = f"retry {lease.attempt + 1} of {lease.max_attempts} after {summary(error)}"
    changes = {"status": Job.Status.READY, "wait_reason": storable(note, 180)}
    return changes if delay is None else changes | {"run_at": UtcNowPlus(delay)}


def _first_loss(lease: Lease) -> bool:
    """Whether no run of this life of the job was lost before: then the death was hardly the job's doing.

    `crashes` counts over all lives; where retry() has begun a new one, the attempts that were kept tell.
    """
    rows = held(lease).values_list("crashes", "epoch", "allowance", "max_attempts")
    found = retry_transient(rows.first, using=lease.using)
    if found is None:
        return False
    crashes, epoch, allowance, max_attempts = found
    if not crashes or not epoch:
        return not crashes
    before = max_attempts - (allowance or 0)
    kept = JobAttempt.objects.using(lease.using).filter(
        job_id=lease.job_id, attempt__gt=before, cause=FailureCause.LOST.value
    )
    return not retry_transient(kept.exists, using=lease.using)


def _fail(
    lease: Lease,
    error: str | BaseException,
    delay_seconds: float | None,
    *,
    retry: bool = True,
    log: str | None = None,
    again: bool = False,
) -> Job.Status | None:
    cause, text = classify(error), describe(error)
    delay = delay_seconds
    if delay is None and not (cause is FailureCause.LOST and _first_loss(lease)):
        delay = default_backoff().delay_seconds(lease.attempt)
    changes = failed_columns(text, cause, lease.attempt) | _next(lease, error, delay, retry)
    tries = int(again)

    def write() -> Job.Status | None:
        nonlocal tries
        tries += 1
        with vendor(lease.using).transaction(connections[lease.using]):
            status: Job.Status | None = None
            if held(lease).filter(cancel_requested_at__isnull=True).update(**changes):
                status = Job.Status(changes["status"])
            elif held(lease).update(**failed_columns(text, cause, lease.attempt) | canceled()):
                status = Job.Status.CANCELED
            elif tries > 1 and _recorded(attempt_row(lease, error, cause, text), lease.using):
                return _recorded_status(lease, Job.Status(changes["status"]))
            if status is not None:
                attempt_row(lease, error, cause, text, log).save(using=lease.using, force_insert=True)
            return status

    status = retry_transient(write, using=lease.using)
    if status is not None:
        promote_next([(lease.queue, lease.ordering_key)], using=lease.using)
        _announce(lease, status, cause, delay)
    return None if status is None else Job.Status(status)


def attempt_row(
    lease: Lease, error: str | BaseException, cause: FailureCause, text: str, log: str | None = None
) -> JobAttempt:
    """The history row of a failed attempt, not saved yet."""
    kind = class_path(error)[:255] if isinstance(error, BaseException) else ""
    return JobAttempt(
        job_id=lease.job_id,
        attempt=lease.attempt,
        fence=lease.fence,
        worker=lease.worker,
        started_at=lease.locked_at,
        cause=cause.value,
        error_class=kind,
        error=text,
        log=log,
    )


def _recorded(row: JobAttempt, using: str) -> bool:
    """Whether an earlier try has written this attempt down. A reaper's record of it has other words."""
    rows = JobAttempt.objects.using(using).filter(job_id=row.job_id, fence=row.fence, worker=row.worker)
    same = rows.filter(cause=row.cause, error_class=row.error_class).values_list("error", flat=True)
    return row.error in same if row.cause == FailureCause.LOST.value else bool(same)


def _recorded_status(lease: Lease, meant: Job.Status) -> Job.Status:
    """What an earlier try made of the job: as it was meant, unless the job was asked to cancel."""
    asked = Job.objects.using(lease.using).filter(pk=lease.job_id, fence=lease.fence, cancel_requested_at__isnull=False)
    return Job.Status.CANCELED if asked.filter(status=Job.Status.CANCELED).exists() else meant


def _announce(lease: Lease, status: Job.Status, cause: FailureCause, delay: float | None) -> None:
    facts: dict[str, Any] = {"job_id": lease.job_id, "queue": lease.queue, "task": lease.task, "using": lease.using}
    run: dict[str, Any] = {"attempt": lease.attempt, "worker": lease.worker, "cause": cause}
    if status == Job.Status.READY:
        send(job_failed, Job, **facts, **run, delay_seconds=delay or 0.0)
    elif status == Job.Status.FAILED:
        send(job_dead, Job, **facts, **run)
    else:
        send(job_canceled, Job, **facts)
