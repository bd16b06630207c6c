"""What follows a lost run, whose process died or whose lease ran out: the task's on_crash, and quarantine."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from jobqueue.conf import load
from jobqueue.conf.known_tasks import spec_at
from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.failures import FailureCause
from jobqueue.models import Job, JobAttempt
from jobqueue.models.job import HELD_GATE, HELD_REASON, QUARANTINED
from jobqueue.transitions.leases import Lease, held


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


_POLICIES = (AfterCrash.RETRY, AfterCrash.FAIL, AfterCrash.HOLD)


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
    if given not in _POLICIES:
        given = spec_at(lease.task).on_crash
    return AfterCrash(given)
