"""The steps of bulk verbs: a chunk of jobs that match, found without locks, and judged again when they are locked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import AuditEvent, Job
from jobqueue.retention.deletion import REFUSALS, delete_job, delete_jobs
from jobqueue.retention.history import keep_by
from jobqueue.runs.stepping import LATER_SECONDS, Kind, Step, next_step, step_transaction
from jobqueue.runs.verbs import still
from jobqueue.runs.walking import next_ids
from jobqueue.signals import held_back
from jobqueue.transitions.operator import cancel_each, discard_each, release_each, retry_each

#: jobs of one chunk
CHUNK = 100
_ENDED = (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)


class Changed(NamedTuple):
    """What a verb did to the jobs of a chunk."""

    changed: int
    refused: int
    #: the id before the first job that another transaction has locked: the next chunk begins behind it; None: no job is
    passed_over: int | None = None


class _Done(NamedTuple):
    """What a try has written, and the signals about that."""

    step: Step
    deliver: Callable[[], None]


def step(*, using: str, most: int = CHUNK) -> Step | None:
    """Do the next chunk of the bulk verb that has been due for longest."""
    return next_step(BULK_VERBS, most=most, using=using)


def _take(event_id: int, most: int, using: str) -> Step | None:
    event = AuditEvent.objects.using(using).filter(pk=event_id, due_at__isnull=False).first()
    if event is None:
        return None
    # Read without locks, and outside the transaction: the verbs look at each job again.
    ids, reached = next_ids(
        event.verb,
        event.filters,
        after_id=event.after_id,
        until_id=event.until_id,
        most=most,
        using=using,
        since=event.created_at,
    )
    last: list[_Done] = []
    return retry_transient("bulk", lambda: _try(event, ids, reached, using, last), using=using)


def _try(event: AuditEvent, ids: list[int], reached: int, using: str, last: list[_Done]) -> Step | None:
    """One try of a chunk, which `last` gets."""
    # The verbs send their signals in this transaction, which may be rolled back.
    with held_back() as deliver, step_transaction("bulk", using):
        done = _write(event, ids, reached, using)
        if done is not None:
            last[:] = [_Done(done, deliver)]
    if not last or (done is None and not _was_done(event, using)):
        return None
    last[0].deliver()
    return last[0].step


def _was_done(event: AuditEvent, using: str) -> bool:
    """Whether an earlier try was committed without an answer. If it was another process's chunk, no harm is done."""
    rows = AuditEvent.objects.using(using).filter(pk=event.pk, steps=event.steps + 1)
    return rows.filter(phase__in=(AuditEvent.State.RUNNING, AuditEvent.State.DONE)).exists()


def _write(event: AuditEvent, ids: list[int], reached: int, using: str) -> Step | None:
    # steps: another process, or an earlier try whose commit was not answered, may have done this chunk.
    mine: QuerySet[AuditEvent] = AuditEvent.objects.using(using)
    mine = mine.filter(pk=event.pk, steps=event.steps, due_at__isnull=False)
    if not vendor(using).lock_rows(mine).values_list("pk", flat=True):
        return None
    found = change(event.verb, ids, still(event.verb, event.filters, event.created_at), using=using)
    waits = found.passed_over is not None
    ends = reached >= event.until_id and not waits
    done = Step(event.pk, event.verb, found.changed, found.refused, before=event.phase if event.steps else "")
    done.phase = AuditEvent.State.DONE if ends else AuditEvent.State.RUNNING
    done.changed_in_all, done.refused_in_all = event.changed + found.changed, event.refused + found.refused
    # Another one may be due, if this one has ended.
    done.more = not waits
    # The number in the WHERE clause again: not every database kept the row locked.
    if not mine.update(
        phase=done.phase,
        changed=done.changed_in_all,
        refused=done.refused_in_all,
        after_id=found.passed_over if waits else reached,
        steps=event.steps + 1,
        due_at=None if ends else UtcNowPlus(LATER_SECONDS) if waits else UtcNow(),
        started_at=event.started_at or UtcNow(),
        updated_at=UtcNow(),
        ended_at=UtcNow() if ends else None,
    ):
        raise DatabaseBusy(f"bulk action {event.pk} was changed by others. Nothing was written; it is tried again.")
    return done


def change(verb: str, ids: Sequence[int], only: Q, *, using: str) -> Changed:
    """Apply `verb` to those of these jobs of which `only` is true when they are locked."""
    if not ids:
        return Changed(0, 0)
    if verb == AuditEvent.Verb.PRUNE:
        return _delete(ids, using=using, only=only)
    changed = _VERBS[verb](ids, using=using, only=only)
    return Changed(changed, len(ids) - changed)


def _delete(ids: Sequence[int], *, using: str, only: Q) -> Changed:
    """Delete those that nobody has locked. The others are found again: a job that is gone is not looked at twice."""
    rows = vendor(using).force_index(Job.objects.using(using).filter(pk__in=list(ids)), "PRIMARY")
    free = vendor(using).lock_rows(rows.annotate(matches=only).order_by("pk"))
    columns = ("matches", "pk", "queue", "status", Coalesce("finished_at", "updated_at"))
    groups: dict[tuple[str, int], dict[int, datetime]] = defaultdict(dict)
    seen: set[int] = set()
    for matches, job_id, queue, status, ended_at in free.values_list(*columns):
        seen.add(job_id)
        if matches and status in _ENDED:
            groups[queue, status][job_id] = ended_at
    keeps, gone = keep_by(load()), set[int]()
    for (queue, status), jobs in sorted(groups.items()):
        try:
            keep = keeps(queue, Job.Status(status).name.lower())
            gone.update(delete_jobs(jobs, status, using=using, keep=keep))
        except REFUSALS:
            # A row of the project protects one of the jobs. The others are deleted one by one.
            gone.update(job_id for job_id in jobs if delete_job(job_id, using=using))
    missing = [job_id for job_id in ids if job_id not in seen]
    locked = Job.objects.using(using).filter(only, pk__in=missing, status__in=_ENDED) if missing else None
    first = None if locked is None else min(locked.values_list("pk", flat=True), default=None)
    if first is None:
        return Changed(len(gone), len(ids) - len(gone))
    # Those behind it that stay are counted by the chunk that has looked at all before them.
    return Changed(len(gone), sum(job_id < first and job_id not in gone for job_id in ids), first - 1)


class _Change(Protocol):
    def __call__(self, ids: Sequence[int], /, *, using: str, only: Q) -> int: ...


_VERBS: dict[str, _Change] = {
    AuditEvent.Verb.RETRY: retry_each,
    AuditEvent.Verb.CANCEL: cancel_each,
    AuditEvent.Verb.DISCARD: discard_each,
    AuditEvent.Verb.RELEASE: release_each,
}
BULK_VERBS = Kind(
    AuditEvent,
    _take,
    AuditEvent.State.FAILED,
    CHUNK,
    "bulk action {id} ({verb})",
    ("changed", "not changed"),
    ("bulk_jobs_changed", "bulk_jobs_refused"),
)
