"""The request to end the process of a running job that does not stop for its cancel request.

It is one key of the options of the row, and counts for one run: an older worker does not know it and only asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import connections

from jobqueue.base.payload import JSON, encode
from jobqueue.base.validation import check_ids, check_instant
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import read_now
from jobqueue.db.expressions import Unestimated
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import JobCanceled, JobQueueError
from jobqueue.failures import describe, dotted_path
from jobqueue.models import Job, JobAttempt
from jobqueue.models.rows import in_state
from jobqueue.signals import RunOutcome
from jobqueue.transitions.failing import Failure, attempt_row
from jobqueue.transitions.leases import Lease, canceled, held
from jobqueue.transitions.verb import Portion, Written, run_verb

#: in the options: [the fence of the run, the instant of the database's clock from which on its process is ended]
KILL = "kill"
_BYTES_MAX = 1 << 62


def kill_at(options: JSON, fence: int) -> datetime | None:
    """When the process of the run with this fence is to be ended; None: never. Plain SQL may have written anything."""
    try:
        of_run, instant = options[KILL]
        return check_instant(datetime.fromisoformat(instant)) if of_run == fence else None
    except (TypeError, KeyError, ValueError, JobQueueError):
        return None


def kill_columns(job: Job, after_seconds: float, using: str) -> dict[str, Any]:
    """The column to write for a request; the earlier one of two counts."""
    known = job.options if isinstance(job.options, dict) else {}
    at, earlier = read_now(using) + timedelta(seconds=after_seconds), kill_at(job.options, job.fence)
    at = at if earlier is None else min(at, earlier)
    options = {**known, KILL: [job.fence, at.isoformat()]}
    return {"options": Encoded(encode(options, max_bytes=_BYTES_MAX, what="the options of the job"))}


class Beside(NamedTuple):
    """A job that the process of another one holds; `task` is None for a raw row."""

    id: int
    task: str | None
    queue: str


def jobs_beside(job_ids: Sequence[int | str], *, using: str | None = None) -> list[Beside]:
    """The other jobs in the processes that run these jobs now, by id: they run again if such a process is killed.

    Two statements, each by an index. Raises InvalidValue, InvalidType.
    """
    alias, ids = alias_of(using), check_ids(job_ids)

    def read() -> list[Beside]:
        running = in_state(ids, Job.Status.PROCESSING, using=alias).values_list("locked_by", flat=True)
        names = sorted({name for name in running if name})
        rows = Job.objects.using(alias).filter(locked_by__in=names, status=Unestimated(int(Job.Status.PROCESSING)))
        found = rows.order_by("pk").values_list("pk", "task", "queue") if names else ()
        return [Beside(*row) for row in found if row[0] not in ids]

    with explain_missing_table(alias):
        return retry_transient("result", read, using=alias)


def end_killed(lease: Lease, stack: Sequence[str]) -> bool:
    """PROCESSING -> CANCELED after the process of the job was killed on request; the run is kept in JobAttempt.

    `stack`: where the job was, the innermost line last; [] if that is not known. False if the job was not asked to
    cancel or its lease is lost, and nothing was written.
    """
    text = _text(stack)
    row = attempt_row(lease, Failure(RunOutcome.CANCELED.value, text, dotted_path(JobCanceled)))
    found = run_verb("cancel", [Portion(lease.using, partial(_end, lease, row), [lease])], {})
    return bool(found.written)


def _text(stack: Sequence[str]) -> str:
    told = "where it was then is above" if stack else "where it was is not known, because it executed no Python code"
    words = describe(JobCanceled(f"it did not stop in time, so its process was killed; {told}"))
    return "\n".join([*(["Stack, the innermost line last:"] if stack else []), *(f"  {line}" for line in stack), words])


def _end(lease: Lease, row: JobAttempt, tries: int) -> Written:
    using = lease.using
    with vendor(using).transaction(connections[using]):
        # Asked: a flag in shared memory may be that of the job before it.
        if held(lease).filter(cancel_requested_at__isnull=False).update(**canceled()):
            row.save(using=using, force_insert=True)
            return {Job.Status.CANCELED: [lease]}
        rows = JobAttempt.objects.using(using).filter(job_id=lease.job_id, fence=lease.fence, cause=row.cause)
        return {Job.Status.CANCELED: [lease]} if tries > 1 and rows.exists() else {}
