"""PROCESSING -> READY or FAILED after a failed attempt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import F
from django.db.models.functions import Least

from jobqueue.backoff import default_backoff
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidType
from jobqueue.failures import FailureCause, classify, describe, dotted_path, is_permanent, storable, summary
from jobqueue.models import Job, JobAttempt
from jobqueue.signals import job_dead, job_failed
from jobqueue.transitions.leases import RELEASED, Lease, canceled, check_lease, check_leases, held
from jobqueue.transitions.verb import Portion, Signals, Written, run_verb
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
    cancel ends CANCELED instead. The attempt is kept in JobAttempt, with the lines it has logged (`log`), in the same
    transaction. `again`: an earlier call with this lease ended in an error and may have been committed all the same; if
    it was, this call returns what it did. Raises LeaseLost when another holder took over, InvalidType and InvalidValue
    for bad arguments; nothing was written.
    """
    check_lease(lease)
    _check(error, delay_seconds)
    portion, signals = _failure(lease, error, delay_seconds, retry=retry, log=log)
    return run_verb("fail", [portion], signals, again=again).status()


def fail_many(
    leases: Sequence[Lease], *, error: str | BaseException, delay_seconds: float | None = None
) -> list[Lease]:
    """fail() for each lease; returns those that were lost and never raises for them."""
    _check(error, delay_seconds)
    gone: list[Lease] = []
    for lease in sorted(check_leases(leases), key=lambda lease: lease.job_id):
        portion, signals = _failure(lease, error, delay_seconds)
        gone += run_verb("fail", [portion], signals).lost
    return gone


def _check(error: object, delay_seconds: object) -> None:
    if not isinstance(error, (str, BaseException)):
        raise InvalidType(f"error must be a str or an exception, got {type(error).__name__}. Nothing was written.")
    if delay_seconds is not None:
        check_seconds(delay_seconds, "delay_seconds", zero=True)


def failed_columns(text: str, cause: FailureCause, attempts: Any) -> dict[str, Any]:
    """The columns that every failed attempt writes, whatever state follows."""
    changes = {"attempts": attempts, "last_error": text, "cause": cause.value, "updated_at": UtcNow()}
    if cause is FailureCause.LOST:
        changes["crashes"] = one_more("crashes")
    return changes | RELEASED


def one_more(column: str) -> Any:
    """The count in `column` plus one, bounded: a huge value written by plain SQL must not stop reaping other rows."""
    return Least(F(column), INT_MAX - 1) + 1


def _next(lease: Lease, error: str | BaseException, delay: float | None, retry: bool) -> dict[str, Any]:
    """The columns that decide what follows: another attempt after `delay` (None: run_at stays), or FAILED."""
    if not retry or lease.attempt >= lease.max_attempts or is_permanent(error):
        return {"status": Job.Status.FAILED, "finished_at": UtcNow(), "wait_reason": None}
    note = f"retry {lease.attempt + 1} of {lease.max_attempts} after {summary(error)}"
    changes = {"status": Job.Status.READY, "wait_reason": storable(note, 180)}
    return changes if delay is None else changes | {"run_at": UtcNowPlus(delay)}


def _first_loss(lease: Lease) -> bool:
    """Whether no run of this life of the job was lost before; then the job is hardly the cause of the crash.

    `crashes` counts all lives. After retry() began a new life, the recorded attempts are counted instead.
    """
    rows = held(lease).values_list("crashes", "epoch", "allowance", "max_attempts")
    found = retry_transient("fail", rows.first, using=lease.using)
    if found is None:
        return False
    crashes, epoch, allowance, max_attempts = found
    if not crashes or not epoch:
        return not crashes
    before = max_attempts - (allowance or 0)
    kept = JobAttempt.objects.using(lease.using).filter(
        job_id=lease.job_id, attempt__gt=before, cause=FailureCause.LOST.value
    )
    return not retry_transient("fail", kept.exists, using=lease.using)


class _Attempt(NamedTuple):
    """A failed attempt, as it is to be written."""

    lease: Lease
    error: str | BaseException
    cause: FailureCause
    text: str
    changes: dict[str, Any]  # of a job that was not asked to cancel
    log: str | None


def _failure(
    lease: Lease, error: str | BaseException, delay: float | None, *, retry: bool = True, log: str | None = None
) -> tuple[Portion, Signals]:
    cause, text = classify(error), describe(error)
    if delay is None and not (cause is FailureCause.LOST and _first_loss(lease)):
        delay = default_backoff().delay_seconds(lease.attempt)
    changes = failed_columns(text, cause, lease.attempt) | _next(lease, error, delay, retry)
    attempt = _Attempt(lease, error, cause, text, changes, log)
    return Portion(lease.using, partial(_write, attempt), [lease]), {
        Job.Status.READY: [(job_failed, {"cause": cause, "delay_seconds": delay or 0.0})],
        Job.Status.FAILED: [(job_dead, {"cause": cause})],
    }


def _write(attempt: _Attempt, tries: int) -> Written:
    lease, error, cause, text, changes, log = attempt
    status: Job.Status | None = None
    with vendor(lease.using).transaction(connections[lease.using]):
        if held(lease).filter(cancel_requested_at__isnull=True).update(**changes):
            status = Job.Status(changes["status"])
        elif held(lease).update(**failed_columns(text, cause, lease.attempt) | canceled()):
            status = Job.Status.CANCELED
        elif tries > 1 and _recorded(attempt_row(lease, error, cause, text), lease.using):
            return {_recorded_status(lease, Job.Status(changes["status"])): [lease]}
        if status is not None:
            attempt_row(lease, error, cause, text, log).save(using=lease.using, force_insert=True)
    return {} if status is None else {status: [lease]}


def attempt_row(
    lease: Lease, error: str | BaseException, cause: FailureCause, text: str, log: str | None = None
) -> JobAttempt:
    """The history row of a failed attempt, not saved yet."""
    kind = dotted_path(type(error))[:255] if isinstance(error, BaseException) else ""
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
    """Whether an earlier try has recorded this attempt. The text of a reaper's record differs."""
    rows = JobAttempt.objects.using(using).filter(job_id=row.job_id, fence=row.fence, worker=row.worker)
    same = rows.filter(cause=row.cause, error_class=row.error_class).values_list("error", flat=True)
    return row.error in same if row.cause == FailureCause.LOST.value else bool(same)


def _recorded_status(lease: Lease, meant: Job.Status) -> Job.Status:
    """What an earlier try made of the job: as it was meant, unless the job was asked to cancel."""
    asked = Job.objects.using(lease.using).filter(pk=lease.job_id, fence=lease.fence, cancel_requested_at__isnull=False)
    return Job.Status.CANCELED if asked.filter(status=Job.Status.CANCELED).exists() else meant
