"""The canary of a redrive: whether its first jobs have passed their next attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jobqueue.models import Job


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
