"""PROCESSING -> READY or FAILED after a failed attempt; after a lost one by the task's on_crash, or in quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from django.db import Error, IntegrityError, connections
from django.db.models import Case, F, Value, When
from django.db.models.functions import Least
from django.dispatch import Signal

from jobqueue.base.validation import INT_MAX, check_seconds
from jobqueue.conf import load
from jobqueue.conf.known_tasks import spec_at
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidType, JobLost
from jobqueue.failures import (
    FailureCause,
    classify,
    describe,
    dotted_path,
    fingerprint,
    is_permanent,
    storable,
    summary,
)
from jobqueue.models import Job, JobAttempt
from jobqueue.models.job import HELD_GATE, HELD_REASON, QUARANTINED
from jobqueue.models.rows import in_state
from jobqueue.signals import job_dead, job_failed, job_parked
from jobqueue.transitions.leases import RELEASED, Lease, canceled, check_lease, check_leases, held
from jobqueue.transitions.verb import Portion, Signals, Written, run_verb

#: a job whose move has waited for longer stays where it is, until its next failure
_MOVE_SECONDS = 1.0
_HELD: tuple[Signal, dict[str, object]] = (job_parked, {"reason": HELD_REASON})


class Also(NamedTuple):
    """What else a failed attempt writes, if the job will be tried again."""

    queue: str | None = None  # the job moves there, unless a job there has its dedupe key, or may get it
    options: Encoded | None = None


def fail(
    lease: Lease,
    *,
    error: str | BaseException,
    delay_seconds: float | None = None,
    retry: bool = True,
    log: str | None = None,
    also: Also | None = None,
    again: bool = False,
) -> Job.Status:
    """Record a failed attempt; READY after the back-off, or FAILED when it was the last one (or may not be retried).

    The first run of a life that was lost (JobLost) has no back-off: READY at once, run_at unchanged, as after reap().
    `delay_seconds` overrides all that; without `retry` it is the last attempt in any case. A job that was asked to
    cancel ends CANCELED instead. The attempt is kept in JobAttempt, with the lines it has logged (`log`), in the same
    transaction; `also` is written with it. `again`: an earlier call with this lease ended in an error and may have been
    committed all the same; if it was, this call returns what it did. Raises LeaseLost when another holder took over,
    InvalidType and InvalidValue for bad arguments; nothing was written.
    """
    check_lease(lease)
    _check(error, delay_seconds)
    portion, signals = _failure(lease, error, delay_seconds, retry=retry, log=log, also=also)
    return run_verb("fail", [portion], signals, again=again, counted_as=_counted_as(error)).status()


def fail_many(
    leases: Sequence[Lease], *, error: str | BaseException, delay_seconds: float | None = None
) -> list[Lease]:
    """fail() for each lease; returns those that were lost and never raises for them."""
    _check(error, delay_seconds)
    gone: list[Lease] = []
    for lease in sorted(check_leases(leases), key=lambda lease: lease.job_id):
        portion, signals = _failure(lease, error, delay_seconds)
        gone += run_verb("fail", [portion], signals, counted_as=_counted_as(error)).lost
    return gone


def _counted_as(error: str | BaseException) -> str:
    """A run that died with its process is a lost one, as after reap()."""
    return "reap" if issubclass(type(error), JobLost) else "fail"


def give_up(lease: Lease, *, again: bool = False) -> Job.Status:
    """End a job whose retry came too late: FAILED, with the error and cause of its last attempt; attempts unchanged.

    CANCELED if it was asked to cancel. Raises LeaseLost like ack. `again` as in fail().
    """
    rows = Job.objects.using(lease.using).filter(pk=lease.job_id)
    cause = retry_transient("fail", rows.values_list("cause", flat=True).first, using=lease.using)
    signals: Signals = {Job.Status.FAILED: [(job_dead, {"cause": cause or FailureCause.UNKNOWN})]}
    portion = Portion(lease.using, partial(_write_end, lease), [lease])
    return run_verb("fail", [portion], signals, again=again).status()


def _write_end(lease: Lease, tries: int) -> Written:
    ended = {"status": Job.Status.FAILED, "finished_at": UtcNow(), "updated_at": UtcNow(), "wait_reason": None}
    if held(lease).filter(cancel_requested_at__isnull=True).update(**ended | RELEASED):
        return {Job.Status.FAILED: [lease]}
    if held(lease).update(**canceled()):
        return {Job.Status.CANCELED: [lease]}
    own = Job.objects.using(lease.using).filter(pk=lease.job_id, fence=lease.fence)
    found = own.filter(status__in=(Job.Status.FAILED, Job.Status.CANCELED)).values_list("status", flat=True).first()
    return {Job.Status(found): [lease]} if tries > 1 and found is not None else {}


def _check(error: object, delay_seconds: object) -> None:
    # In this order: isinstance() asks an exception that is no str for __class__, which may be a property that raises.
    if not isinstance(error, (BaseException, str)):
        raise InvalidType(f"error must be a str or an exception, got {type(error).__name__}. Nothing was written.")
    if delay_seconds is not None:
        check_seconds(delay_seconds, "delay_seconds", zero=True)


class Failure(NamedTuple):
    """What is recorded of an error, with the job and with the attempt."""

    cause: str
    text: str
    error_class: str = ""  # "" for text
    fingerprint: str | None = None  # None: the run did not fail


def failure_of(error: str | BaseException, lease: Lease) -> Failure:
    """What to record of the `error` of this run."""
    kind = dotted_path(type(error))[:255] if isinstance(error, BaseException) else ""
    same = fingerprint(error, task=lease.task, queue=lease.queue)
    return Failure(cause_of(error, lease.task), describe(error), kind, same)


def failed_columns(failure: Failure, attempts: Any) -> dict[str, Any]:
    """The columns that every failed attempt writes, whatever state follows."""
    changes = {
        "attempts": attempts,
        "last_error": failure.text,
        "cause": str(failure.cause),
        "fingerprint": failure.fingerprint,
        "updated_at": UtcNow(),
    }
    if failure.cause == FailureCause.LOST:
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


class _Attempt(NamedTuple):
    """A failed attempt, as it is to be written."""

    lease: Lease
    failure: Failure
    changes: dict[str, Any]  # of a job that was not asked to cancel
    log: str | None


def _failure(
    lease: Lease,
    error: str | BaseException,
    delay: float | None,
    *,
    retry: bool = True,
    log: str | None = None,
    also: Also | None = None,
) -> tuple[Portion, Signals]:
    failure = failure_of(error, lease)
    cause = failure.cause
    losses = losses_of(lease) if cause == FailureCause.LOST else None
    # A job is hardly the cause of the first crash of its life.
    if delay is None and (losses is None or losses.earlier):
        delay = load().backoff.delay_seconds(lease.attempt)
    changes = failed_columns(failure, lease.attempt) | _next(lease, error, delay, retry)
    if losses is not None and retry and (then := after_crash(losses, lease)) is not AfterCrash.RETRY:
        changes |= then.changes()
    if also is not None and changes["status"] is Job.Status.READY:
        changes |= {name: value for name, value in also._asdict().items() if value is not None}
    attempt = _Attempt(lease, failure, changes, log)
    write = _write_moved if "queue" in changes else _write
    return Portion(lease.using, partial(write, attempt), [lease]), {
        Job.Status.READY: [
            _HELD if "gate" in changes else (job_failed, {"cause": cause, "delay_seconds": delay or 0.0})
        ],
        Job.Status.FAILED: [(job_dead, {"cause": cause})],
    }


def _write_moved(attempt: _Attempt, tries: int) -> Written:
    """Write it, and move the job to another queue; one with a dedupe key afterwards, by a transaction of its own.

    The index of keys may refuse the move, or let it wait for an enqueue: neither may hold up the end of the attempt.
    """
    queue = attempt.changes["queue"]
    name = Job._meta.get_field("queue")
    unless_keyed = Case(When(dedupe_key__isnull=True, then=Value(queue, name)), default=F("queue"))
    written = _write(attempt._replace(changes=attempt.changes | {"queue": unless_keyed}), tries)
    if Job.Status.READY in written:
        _move_keyed(attempt.lease, queue)
    return written


def _move_keyed(lease: Lease, queue: str) -> None:
    """Move a job that has a dedupe key, unless a job there has it, or an enqueue of it is not committed in time."""
    rows = in_state([lease.job_id], Job.Status.READY, using=lease.using, queue=lease.queue).filter(fence=lease.fence)
    locks = vendor(lease.using).locks
    try:
        with locks.brief_transaction(connections[lease.using], _MOVE_SECONDS):
            rows.update(queue=queue, updated_at=UtcNow())
    except IntegrityError:
        pass  # it stays where it is
    except Error as error:
        if not locks.is_lock_timeout(error):
            raise


def _write(attempt: _Attempt, tries: int) -> Written:
    lease, failure, changes, log = attempt
    status: Job.Status | None = None
    with vendor(lease.using).transaction(connections[lease.using]):
        if held(lease).filter(cancel_requested_at__isnull=True).update(**changes):
            status = Job.Status(changes["status"])
        elif held(lease).update(**failed_columns(failure, lease.attempt) | canceled()):
            status = Job.Status.CANCELED
        elif tries > 1 and _recorded(attempt_row(lease, failure), lease.using):
            return {_recorded_status(lease, Job.Status(changes["status"])): [lease]}
        if status is not None:
            attempt_row(lease, failure, log).save(using=lease.using, force_insert=True)
    return {} if status is None else {status: [lease]}


def attempt_row(lease: Lease, failure: Failure, log: str | None = None) -> JobAttempt:
    """The history row of an attempt that ended without success, not saved yet."""
    return JobAttempt(
        job_id=lease.job_id,
        attempt=lease.attempt,
        fence=lease.fence,
        worker=lease.worker,
        started_at=lease.locked_at,
        cause=str(failure.cause),
        fingerprint=failure.fingerprint,
        error_class=failure.error_class,
        error=failure.text,
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


def cause_of(error: BaseException | str, task: str | None) -> FailureCause:
    """The cause class of `error`. `task` is the name on the job's row; None for the row of a handler."""
    return classify(error, (spec_at(task).causes, load().causes))


class AfterCrash(StrEnum):
    """What becomes of the job; the first three are the values of on_crash."""

    RETRY = "retry"
    FAIL = "fail"
    HOLD = "hold"
    QUARANTINE = "quarantine"  # FAILED with a mark: it has killed as many workers as it may

    def changes(self) -> dict[str, Any]:
        """The columns of the job's state. RETRY leaves wait_reason to the caller."""
        if self in (AfterCrash.FAIL, AfterCrash.QUARANTINE):
            mark = QUARANTINED if self is AfterCrash.QUARANTINE else None
            return {"status": Job.Status.FAILED, "finished_at": UtcNow(), "wait_reason": mark}
        if self is AfterCrash.HOLD:
            return {"status": Job.Status.READY, "gate": HELD_GATE, "wait_reason": HELD_REASON}
        return {"status": Job.Status.READY}


class Losses(NamedTuple):
    """How often runs of a job were lost before, in this life of it."""

    earlier: int
    allowance: int  # attempts of one life


def losses_of(lease: Lease) -> Losses | None:
    """Count the losses of the job that `lease` holds; None if the lease does not hold it any more."""
    rows = held(lease).values_list("crashes", "epoch", "allowance", "max_attempts")
    found = retry_transient("fail", rows.first, using=lease.using)
    return None if found is None else _losses(lease.job_id, *found, using=lease.using)


def losses_in(job: Job, using: str) -> Losses:
    """Of a job whose row was just read. Exact if it matters: a reaper must not read the history of every row."""
    most = job.allowance or job.max_attempts
    if job.crashes + 1 < _bound(most):
        return Losses(job.crashes, most)
    return _losses(job.pk, job.crashes, job.epoch, job.allowance, job.max_attempts, using=using)


def _losses(job_id: int, crashes: int, epoch: int, allowance: int | None, max_attempts: int, *, using: str) -> Losses:
    """`crashes` counts all lives. After retry() began a new life, the recorded attempts are counted instead."""
    most = allowance or max_attempts
    if not crashes or not epoch:
        return Losses(crashes, most)
    kept = JobAttempt.objects.using(using).filter(
        job_id=job_id, attempt__gt=max_attempts - (allowance or 0), cause=FailureCause.LOST.value
    )
    return Losses(retry_transient("fail", partial(kept.count), using=using), most)


def _bound(allowance: int) -> int:
    """The number of lost runs in one life that quarantines a job."""
    return min(allowance, load().quarantine_crashes or allowance)


def after_crash(losses: Losses, lease: Lease) -> AfterCrash:
    """What becomes of the job after one more lost run."""
    if losses.earlier + 1 >= _bound(losses.allowance):
        return AfterCrash.QUARANTINE
    policy = _on_crash(lease)
    if lease.attempt >= lease.max_attempts:
        return AfterCrash.FAIL
    return policy


def _on_crash(lease: Lease) -> AfterCrash:
    """The row tells it, because a reaper need not know the task; plain SQL may have written none, or anything."""
    given = lease.options.get("on_crash") if isinstance(lease.options, dict) else None
    if given not in (AfterCrash.RETRY, AfterCrash.FAIL, AfterCrash.HOLD):
        given = spec_at(lease.task).on_crash
    return AfterCrash(given)
