"""PROCESSING -> READY or CANCELED because the job asked for it: it raised Snooze or Discard. No attempt is used."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.redone import Verb
from jobqueue.exceptions import Discard, Snooze
from jobqueue.failures import dotted_path, storable
from jobqueue.models import Job, JobAttempt
from jobqueue.signals import job_snoozed
from jobqueue.transitions.failing import Also, Failure, attempt_row
from jobqueue.transitions.leases import RELEASED, Lease, canceled, held
from jobqueue.transitions.verb import Portion, Signals, Written, run_verb


class _Run(NamedTuple):
    """A run that ended so, as it is to be written."""

    lease: Lease
    changes: dict[str, Any]  # of a job that was not asked to cancel
    row: JobAttempt


def snooze_run(
    lease: Lease, *, error: Snooze, log: str | None = None, also: Also | None = None, again: bool = False
) -> Job.Status:
    """The job raised Snooze: READY in error.after_seconds, attempts unchanged. Raises LeaseLost like ack.

    CANCELED if the job was asked to cancel. The run is kept in JobAttempt, where it replaces an earlier snooze of the
    same attempt: a job may snooze for days. `also` and `again` as in fail().
    """
    changes = {
        "status": Job.Status.READY,
        "wait_reason": "snoozed",
        "run_at": UtcNowPlus(error.after_seconds),
        "updated_at": UtcNow(),
        **RELEASED,
    }
    if also is not None and also.options is not None:
        changes["options"] = also.options
    facts = {"delay_seconds": error.after_seconds}
    row = attempt_row(lease, Failure(JobAttempt.SNOOZED, storable(str(error)), dotted_path(type(error))), log)
    return _end("snooze", _Run(lease, changes, row), {Job.Status.READY: [(job_snoozed, facts)]}, again)


def discard_run(lease: Lease, *, error: Discard, log: str | None = None, again: bool = False) -> Job.Status:
    """The job raised Discard: CANCELED with the reason as last_error. Raises LeaseLost like ack. `again` as in fail().

    The run is kept in JobAttempt. `cause` and `fingerprint` become NULL, because last_error is no failure.
    """
    reason = storable(error.reason)
    row = attempt_row(lease, Failure(JobAttempt.DISCARDED, reason, dotted_path(type(error))), log)
    return _end(
        "discard", _Run(lease, canceled() | {"last_error": reason, "cause": None, "fingerprint": None}, row), {}, again
    )


def _end(verb: Verb, run: _Run, signals: Signals, again: bool) -> Job.Status:
    portion = Portion(run.lease.using, partial(_write, run), [run.lease])
    return run_verb(verb, [portion], signals, again=again).status()


def _write(run: _Run, tries: int) -> Written:
    lease, changes, row = run
    using, status = lease.using, Job.Status(changes["status"])
    with vendor(using).transaction(connections[using]):
        if held(lease).filter(cancel_requested_at__isnull=True).update(**changes):
            _keep(row, using)
        elif held(lease).update(**(changes if status is Job.Status.CANCELED else canceled())):
            _keep(row, using)
            status = Job.Status.CANCELED
        elif tries > 1 and (found := _by_earlier_try(lease, row, status)) is not None:
            status = found
        else:
            return {}
    return {status: [lease]}


def _keep(row: JobAttempt, using: str) -> None:
    rows = JobAttempt.objects.using(using).filter(job_id=row.job_id)
    earlier = rows.filter(attempt=row.attempt, cause=JobAttempt.SNOOZED).values_list("pk", flat=True).first()
    if row.cause != JobAttempt.SNOOZED or earlier is None:
        row.save(using=using, force_insert=True)
        return
    # By its key, so that no row or gap of another job is locked.
    columns = ("fence", "worker", "started_at", "error", "log")
    same = JobAttempt.objects.using(using).filter(pk=earlier)
    same.update(ended_at=UtcNow(), **{name: getattr(row, name) for name in columns})


def _by_earlier_try(lease: Lease, row: JobAttempt, meant: Job.Status) -> Job.Status | None:
    """What an earlier try, whose commit was not answered, made of the job; None if there was none."""
    rows = JobAttempt.objects.using(lease.using).filter(job_id=lease.job_id, fence=lease.fence, cause=row.cause)
    if not rows.exists():
        return None
    now = Job.objects.using(lease.using).filter(pk=lease.job_id, fence=lease.fence, status=Job.Status.CANCELED)
    return Job.Status.CANCELED if now.exists() else meant
