"""Jobs that are to run alone: recorded here, and begun by a worker of their queue in a process for that one job.

The record is a redrive of one job. It is begun in one transaction with the claim of the job, so one worker does it.
What became of the run is read from the job: nothing is lost with the process, its worker or its host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

from django.db import connections
from django.db.models import Q, QuerySet

from jobqueue.base.validation import check_id
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.models import Job, Redrive
from jobqueue.models.job import ALONE_REASON, HELD_GATE, QUARANTINED
from jobqueue.runs.stepping import WAITS_ALONE, write_step
from jobqueue.transitions import Lease
from jobqueue.transitions.alone import HeldBack, claim_alone

#: between two looks at a job that runs alone
_LOOK_SECONDS = 1.0
#: between two tries to begin one that a limit, a pause or a breaker holds back: each takes a process
_HELD_BACK_SECONDS = 5.0
#: requests that are read at once
_PORTION = 1000


def request_alone(job_id: int | str, *, using: str | None = None) -> bool:
    """Record that a worker is to run a FAILED, CANCELED or held job in a process of its own, in about two seconds.

    True also if that is recorded already and has not ended; False if the job does not exist or is in another state.
    """
    number, alias = check_id(job_id), alias_of(using)
    with explain_missing_table(alias):
        found = Job.objects.using(alias).filter(pk=number).values_list("status", "gate", "queue").first()
        if found is None:
            return False
        status, gate, queue = found
        held = status == Job.Status.READY and gate == HELD_GATE
        if not held and status not in (Job.Status.FAILED, Job.Status.CANCELED):
            return is_requested(number, using=alias)
        retry_transient("retry", partial(_record, number, queue, alias), using=alias)
    return True


def is_requested(job_id: int, *, using: str) -> bool:
    """Whether this job is to run alone, or does so now."""
    rows = Redrive.objects.using(using).filter(due_at__isnull=False, alone=True, until_id=job_id)
    return any(filters.get("job_ids") == [job_id] for filters in rows.values_list("filters", flat=True))


def queues_alone(*, using: str) -> set[str]:
    """The queues of the jobs that wait for a process of their own."""
    return {filters.get("queue", "") for _, filters in _each_waiting(using)}


def begin_alone(serves: Callable[[str], bool], *, worker: str, lease_seconds: float, using: str) -> Lease | None:
    """Claim the job of one of these queues that has waited longest for a process of its own. None if there is none.

    One that a limit, a pause or a breaker holds back waits for its turn as other jobs do.
    """
    for run_id, filters in _each_waiting(using):
        if serves(filters.get("queue", "")):
            begin = partial(_begin, run_id, worker, lease_seconds, using)
            if (lease := retry_transient("claim", begin, using=using)) is not None:
                return lease
    return None


def end_alone(run: Redrive, now: datetime, using: str) -> None:
    """Set the columns of a redrive whose job was begun, by what the job's row shows; save nothing."""
    ((job_id, fence),) = run.canaries
    columns = ("status", "fence", "gate", "cause", "wait_reason")
    found = Job.objects.using(using).filter(pk=job_id).values_list(*columns).first()
    if found is None:
        run.end(Redrive.State.STOPPED, f"job {job_id} was deleted")
        return
    status, current, gate, cause, waits = found
    if current != fence:
        run.end(Redrive.State.DONE, f"job {job_id} has run again since")
    elif status == Job.Status.PROCESSING:
        run.due_at = now + timedelta(seconds=_LOOK_SECONDS)
    elif status == Job.Status.READY and gate == HELD_GATE and waits == ALONE_REASON:
        # Its worker was stopped before the job had ended: the next one begins it again.
        run.changed, run.canaries, run.due_at = 0, [], now
    elif status == Job.Status.DONE:
        run.end(Redrive.State.DONE, f"job {job_id} is DONE")
    else:
        mark = ", quarantined" if waits == QUARANTINED else ""
        why = f"; cause: {cause}{mark}" if status == Job.Status.FAILED else f"; {waits}" if waits else ""
        run.end(Redrive.State.STOPPED, f"job {job_id} is {Job.Status(status).name} after it ran alone{why}")


def _record(job_id: int, queue: str, using: str) -> None:
    # An earlier try may have been committed without an answer.
    if not is_requested(job_id, using=using):
        filters = {"job_ids": [job_id], "queue": queue}
        run = Redrive(phase=Redrive.State.RUNNING, filters=filters, alone=True, matched=1, until_id=job_id)
        run.save(using=using, force_insert=True)


def _each_waiting(using: str) -> Iterator[tuple[int, Any]]:
    """(id, filters) of those that are due, longest first."""
    page = _waiting(using).rows()
    while page:
        yield from ((run_id, filters) for run_id, filters, _ in page)
        run_id, _, due_at = page[-1]
        behind = Q(due_at__gt=due_at) | Q(due_at=due_at, pk__gt=run_id)
        page = list(_due(using).filter(behind)[:_PORTION]) if len(page) == _PORTION else []


@cache
def _waiting(using: str) -> Prepared:
    """The first of them."""
    return prepare_rows(_due(using)[:_PORTION])


def _due(using: str) -> QuerySet[Any]:
    rows = Redrive.objects.using(using).filter(WAITS_ALONE, due_at__lte=UtcNow()).order_by("due_at", "pk")
    return rows.values_list("pk", "filters", "due_at")


def _begin(run_id: int, worker: str, lease_seconds: float, using: str) -> Lease | None:
    rows = Redrive.objects.using(using).filter(WAITS_ALONE, pk=run_id, due_at__lte=UtcNow())
    with vendor(using).transaction(connections[using]):
        run: Redrive | None = vendor(using).lock_rows(rows).first()
        if run is None:
            return None
        (job_id,) = run.filters["job_ids"]
        lease, held_back = None, None
        try:
            lease = claim_alone(job_id, worker=worker, lease_seconds=lease_seconds, using=using)
        except HeldBack as error:
            held_back = error
        if held_back is not None:
            run.problem, run.due_at = f"job {job_id} waits: {held_back.why}"[:200], UtcNowPlus(_HELD_BACK_SECONDS)
        elif lease is None:
            run.refused = 1
            run.end(
                Redrive.State.STOPPED,
                f"job {job_id} was not run: its state, its dedupe key or its ordering key forbids it",
            )
        else:
            run.problem = ""
            run.changed, run.canaries, run.due_at = 1, [[job_id, lease.fence]], UtcNowPlus(_LOOK_SECONDS)
        write_step(run, using)
        return lease
