"""The steps of redrives: a batch of dead letters, up to what the rate, the limit and the canary allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from django.db.models import Q

from jobqueue import wakeup
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.models import Job, Redrive
from jobqueue.runs.alone import end_alone
from jobqueue.runs.job_filter import condition, next_dead_ids
from jobqueue.runs.stepping import LATER_SECONDS, Kind, Step, next_step, step_transaction, write_step
from jobqueue.transitions.redriving import retry_locked
from jobqueue.transitions.verb import JobRef, Portion, Written, run_verb

#: jobs of one step
BATCH = 500
#: ids that are kept with a redrive, and dead letters that one step reads to find them, so that no step takes long
_PORTION, _WINDOW = 2000, 5000
#: between two steps of a redrive with a rate
_PAUSE_SECONDS = 0.3
#: after a pause in which no process took a step, what the rate allowed meanwhile is made up for this time at most
_CATCH_UP_SECONDS = 2.0


class _Facts(TypedDict):
    """What is read with a redrive."""

    now: datetime


if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownRun = WithAnnotations[Redrive, _Facts]


@dataclass(slots=True)
class _Try:
    """What one try of a step has written: its number, its counts and its jobs."""

    number: int = 0
    step: Step | None = None
    jobs: list[JobRef] = field(default_factory=list)


def step(*, using: str, most: int = BATCH) -> Step | None:
    """Take the next step of the redrive that has been due for longest."""
    return next_step(REDRIVES, most=most, using=using)


def _take(run_id: int, most: int, using: str) -> Step | None:
    last = _Try()
    run_verb("retry", [Portion(using, partial(_try, run_id, most, using, last))], {})
    for queue in {job.queue for job in last.jobs}:
        wakeup.notify(queue, using)
    return last.step


def _try(run_id: int, most: int, using: str, last: _Try, tries: int) -> Written:
    # In its transaction, so that the jobs and the progress of the redrive are committed together.
    with step_transaction("retry", using):
        _write(run_id, most, using, last)
    return {Job.Status.READY: last.jobs}


def _write(run_id: int, most: int, using: str, last: _Try) -> None:
    rows = Redrive.objects.using(using).filter(pk=run_id)
    run = vendor(using).lock_rows(rows.filter(due_at__isnull=False).annotate(now=UtcNow())).first()
    if last.step is not None and (run is None or run.steps >= last.number):
        # An earlier try was committed without an answer. If it was another process's step, no harm is done.
        return
    last.step, last.jobs = None, []
    if run is None or run.due_at > run.now:
        return
    taken = Step(run.pk, before=str(run.phase) if run.steps else "")
    if run.alone:
        end_alone(run, run.now, using)
    elif run.phase == Redrive.State.CANARY and not _left(run):
        _after_canary(run, using)
    elif run.canaries and run.phase == Redrive.State.CANARY and (problem := problem_of(run.canaries, using)):
        run.end(Redrive.State.STOPPED, problem)
    else:
        _some(run, min(most, _allowed(run)), using, last.jobs, taken)
    write_step(run, using)
    taken.phase, taken.problem = str(run.phase), str(run.problem)
    taken.changed_in_all, taken.refused_in_all = run.changed, run.refused
    taken.more = run.due_at is not None and run.due_at <= run.now
    last.number, last.step = run.steps, taken


def _some(run: ShownRun, count: int, using: str, jobs: list[JobRef], taken: Step) -> None:
    """Retry up to `count` of the next jobs, which are added to `jobs`."""
    _read_ids(run, using)
    if run.per_second is not None:
        taken.refused = _pass_changed(run, using)
    chosen = run.pending[: min(count, _left(run))]
    locked = _lock(chosen, run, using)
    found = [job for job in locked.values() if job is not None]
    jobs += retry_locked(found, using=using)
    mine = {job.job_id for job in jobs}
    taken.changed = len(mine)
    taken.refused += len(locked) - len(mine)
    run.changed, run.refused = run.changed + taken.changed, run.refused + taken.refused
    run.pending = run.pending[len(locked) :]
    _pace(run, taken.changed, waits=len(locked) < len(chosen))
    if run.phase == Redrive.State.CANARY:
        run.canaries += [[job.pk, job.epoch + 1, job.attempts] for job in found if job.pk in mine]
    elif not _left(run):
        run.end(Redrive.State.DONE)


def _left(run: Redrive) -> int:
    """The most jobs that the redrive may still retry; of its canary, while that is not complete."""
    if not run.pending and run.after_id >= run.until_id:
        return 0
    limits = [run.job_limit, run.canary if run.phase == Redrive.State.CANARY else None]
    return max(0, min((limit - run.changed for limit in limits if limit is not None), default=_PORTION))


def _read_ids(run: Redrive, using: str) -> None:
    """Have the next jobs in run.pending, in order of their ids; none if the next dead letters do not match.

    The dead letters up to run.after_id have been read.
    """
    if run.pending or run.after_id >= run.until_id:
        return
    run.pending, run.after_id = next_dead_ids(
        using, run.filters, after_id=run.after_id, until_id=run.until_id, read_max=_WINDOW, most=_PORTION
    )


def _pass_changed(run: Redrive, using: str) -> int:
    """Skip the next jobs that are no longer its own, without locks: none can become its own again. How many."""
    ids = run.pending[:BATCH]
    rows = vendor(using).force_index(Job.objects.using(using).filter(pk__in=ids), "PRIMARY")
    ours = dict(rows.annotate(ours=_is_ours(run)).values_list("pk", "ours"))
    passed = next((place for place, job_id in enumerate(ids) if ours.get(job_id)), len(ids))
    run.pending = run.pending[passed:]
    return passed


def _lock(ids: Sequence[int], run: Redrive, using: str) -> dict[int, Job | None]:
    """Those of `ids` before the first one that another transaction has locked; None: it is not the redrive's own.

    The redrive waits there, so that jobs of one ordering key keep their order.
    """
    rows = vendor(using).force_index(Job.objects.using(using).filter(pk__in=ids), "PRIMARY").order_by("pk")
    # Among the columns, and not in WHERE: there it could lead to an index through which other rows are locked.
    columns = rows.defer("payload", "result", "last_error").annotate(ours=_is_ours(run))
    found = {job.pk: job if job.ours else None for job in vendor(using).lock_rows(columns)}
    missing = [job_id for job_id in ids if job_id not in found]
    others = Job.objects.using(using).filter(pk__in=missing).values_list("pk", flat=True) if missing else ()
    end = min(others, default=None)
    return {job_id: found.get(job_id) for job_id in ids if end is None or job_id < end}


def _is_ours(run: Redrive) -> Q:
    """The condition on a job that still matches and has been FAILED since before the redrive was recorded."""
    unchanged = Q(finished_at__isnull=True) | Q(finished_at__lte=run.created_at)
    return Q(status=Job.Status.FAILED) & unchanged & condition(run.filters)


def _paced(run: ShownRun) -> datetime:
    """Up to which instant the rate is used up, if there is one."""
    if run.per_second is None:
        return run.now
    interval = 1 / run.per_second
    if run.paced_at is None:
        return run.now - timedelta(seconds=interval)
    paced: datetime = run.paced_at
    return max(paced, run.now - timedelta(seconds=interval + _CATCH_UP_SECONDS))


def _allowed(run: ShownRun) -> int:
    """How many jobs the rate allows now."""
    if run.per_second is None:
        return _PORTION
    return math.floor((run.now - _paced(run)).total_seconds() * run.per_second + 1e-3)


def _pace(run: ShownRun, redriven: int, *, waits: bool) -> None:
    """Set when the next step is due, and what of the rate is used up by this one."""
    if run.per_second is not None:
        run.paced_at = _paced(run) + timedelta(seconds=redriven / run.per_second)
    if waits:
        run.due_at = run.now + timedelta(seconds=LATER_SECONDS)
    elif run.per_second is None or run.paced_at is None:
        run.due_at = run.now
    else:
        next_at = run.paced_at + timedelta(seconds=1 / run.per_second)
        soon = run.now + timedelta(seconds=_PAUSE_SECONDS)
        run.due_at = run.now if next_at <= run.now else max(next_at, soon)


def _after_canary(run: ShownRun, using: str) -> None:
    """A redrive whose canary is complete goes on, waits for the canary, or ends."""
    verdict = verdict_of(run.canaries, using)
    if verdict.problem:
        run.end(Redrive.State.STOPPED, verdict.problem)
    elif not verdict.decided:
        run.due_at = run.now + timedelta(seconds=LATER_SECONDS)
    else:
        run.phase, run.due_at, run.paced_at = Redrive.State.RUNNING, run.now, run.now
        if not _left(run):
            run.end(Redrive.State.DONE)


REDRIVES = Kind(
    Redrive,
    _take,
    Redrive.State.STOPPED,
    BATCH,
    "redrive {id} of dead letters",
    ("redriven", "skipped"),
    ("jobs_redriven", "jobs_skipped"),
)


class Verdict(NamedTuple):
    """`problem`: why the redrive must stop, or "". `decided`: no job of the canary has its attempt before it."""

    decided: bool
    problem: str = ""


def problem_of(canaries: Sequence[Sequence[int]], using: str) -> str:
    """Which job of a canary that is not complete has failed, and why; "" if none has."""
    found = _columns(canaries, using)
    problems = (_failure(found.get(job_id), job_id, epoch, before) for job_id, epoch, before in canaries)
    return next(filter(None, problems), "")


def verdict_of(canaries: Sequence[Sequence[int]], using: str) -> Verdict:
    """By the rows of these jobs, each given as [id, epoch, attempts] after it was retried.

    Jobs that were deleted, canceled, discarded or retried by hand say nothing; at least one must have passed.
    """
    found = _columns(canaries, using)
    passed = waiting = 0
    for job_id, own_epoch, before in canaries:
        row = found.get(job_id)
        if problem := _failure(row, job_id, own_epoch, before):
            return Verdict(True, problem)
        if row is not None:
            passed += row.status == Job.Status.DONE
            waiting += row.status in (Job.Status.READY, Job.Status.PROCESSING) and row.epoch == own_epoch
    if waiting or not canaries:
        return Verdict(not waiting)
    return Verdict(True, "" if passed else "no job of the canary has passed: all were canceled, discarded or changed")


class _Columns(NamedTuple):
    """The columns of a canary's row."""

    status: int
    epoch: int
    attempts: int
    cause: str | None


def _columns(canaries: Sequence[Sequence[int]], using: str) -> dict[int, _Columns]:
    rows = Job.objects.using(using).filter(pk__in=[job_id for job_id, _, _ in canaries])
    return {row[0]: _Columns(*row[1:]) for row in rows.values_list("pk", *_Columns._fields)}


def _failure(row: _Columns | None, job_id: int, own_epoch: int, before: int) -> str:
    if row is None:
        return ""
    if row.attempts > before or (row.status == Job.Status.FAILED and row.epoch == own_epoch):
        return f"job {job_id} of the canary failed in its next attempt; cause: {row.cause}"
    return ""
