"""Carries bulk verbs out, a chunk per transaction: its jobs and the progress are committed together, or not at all.

Any number of processes may try; the row of the bulk action is locked by the one that does a chunk. A process that
dies leaves it as it was after the last chunk, and the next one goes on there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import NamedTuple, Protocol

from django.db import Error, connections
from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce

from jobqueue.bulk_verbs.filtering import still
from jobqueue.bulk_verbs.walking import next_ids
from jobqueue.conf import load
from jobqueue.db import fault_vendor, vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.dialect import GONE_KINDS
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.retry import count_error, retry_transient
from jobqueue.dead_letters.failed_steps import OF_THE_DATABASE, reason_of
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import AuditEvent, Job
from jobqueue.retention.deletion import REFUSALS, delete_job, delete_jobs
from jobqueue.retention.history import keep_by
from jobqueue.signals import held_back
from jobqueue.transitions.operator import cancel_each, discard_each, release_each, retry_each

#: jobs of one chunk
CHUNK = 100
#: bulk actions among which one is looked for that nobody has locked
DUE_MAX = 1000
#: of each wait for a lock, and until a chunk that met one is tried again
_LOCK_SECONDS, _LATER_SECONDS = 1.0, 1.0
_ENDED = (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)


@dataclass(slots=True)
class Step:
    """What one chunk did. Nothing was written if there is an `error`; DatabaseBusy: it is tried again."""

    event_id: int
    verb: str
    changed: int = 0
    refused: int = 0
    first: bool = False
    phase: str = ""
    error: Exception | None = None


class _Done(NamedTuple):
    """What a try has written, and the signals about that."""

    step: Step
    deliver: Callable[[], None]


def step(*, using: str, chunk: int = CHUNK) -> Step | None:
    """Do the next chunk of the bulk action that has been due for longest. None if there is none, or others do it.

    One that another process has locked, which may be frozen, is passed over. One that meets a lock is due again in a
    second. Errors of the database are raised, and it is due again in a second, too. One whose chunk raises anything
    else ends as failed.
    """
    for (event_id,) in _next_due(using).rows():
        if (done := _step_of(event_id, chunk, using)) is not None:
            return done
    return None


def _step_of(event_id: int, chunk: int, using: str) -> Step | None:
    event = AuditEvent.objects.using(using).filter(pk=event_id, due_at__isnull=False).first()
    if event is None:
        return None
    try:
        # Read without locks, and outside the transaction: the verbs look at each job again.
        ids, reached = next_ids(
            event.verb,
            event.filters,
            after_id=event.after_id,
            until_id=event.until_id,
            most=chunk,
            using=using,
            since=event.created_at,
        )
        last: list[_Done] = []
        return retry_transient("bulk", lambda: _try(event, ids, reached, using, last), using=using)
    except DatabaseBusy as error:
        _put_off(event, using)
        return Step(event.pk, event.verb, error=error)
    except OF_THE_DATABASE:
        _put_off(event, using)
        raise
    except Exception as error:
        _fail(event, reason_of(error), using)
        return Step(event.pk, event.verb, phase=AuditEvent.State.FAILED, error=error)


@cache
def _next_due(using: str) -> Prepared:
    rows = AuditEvent.objects.using(using).filter(due_at__lte=UtcNow()).order_by("due_at")
    return prepare_rows(rows.values_list("pk")[:DUE_MAX])


def _try(event: AuditEvent, ids: list[int], reached: int, using: str, last: list[_Done]) -> Step | None:
    """One try of a chunk, which `last` gets. Raises DatabaseBusy at the first lock: the thread has other duties."""
    try:
        # The verbs send their signals in this transaction, which may be rolled back.
        with held_back() as deliver, vendor(using).locks.timed_transaction(connections[using], _LOCK_SECONDS):
            done = _write(event, ids, reached, using)
            if done is not None:
                last[:] = [_Done(done, deliver)]
    except Error as error:
        if fault_vendor(using).error_kind(error) in (None, *GONE_KINDS):
            raise
        count_error("bulk", error, using=using)
        raise DatabaseBusy(f"{error}. Nothing was written; the chunk is tried again.") from error
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
    mine = _mine(event, using)
    if not vendor(using).lock_rows(mine).values_list("pk", flat=True):
        return None
    changed = change(event.verb, ids, still(event.verb, event.filters, event.created_at), using=using)
    ends = reached >= event.until_id
    done = Step(event.pk, event.verb, changed, len(ids) - changed, first=not event.steps)
    done.phase = AuditEvent.State.DONE if ends else AuditEvent.State.RUNNING
    # The number in the WHERE clause again: not every database kept the row locked.
    if not mine.update(
        phase=done.phase,
        changed=event.changed + changed,
        refused=event.refused + done.refused,
        after_id=reached,
        steps=event.steps + 1,
        due_at=None if ends else UtcNow(),
        started_at=event.started_at or UtcNow(),
        ended_at=UtcNow() if ends else None,
    ):
        raise DatabaseBusy(f"bulk action {event.pk} was changed by others. Nothing was written; it is tried again.")
    return done


def _put_off(event: AuditEvent, using: str) -> None:
    """Let others go first, unless another process has done the chunk meanwhile."""
    _written(lambda: _mine(event, using).update(due_at=UtcNowPlus(_LATER_SECONDS)), using)


def _fail(event: AuditEvent, problem: str, using: str) -> None:
    def end() -> None:
        _mine(event, using).update(
            phase=AuditEvent.State.FAILED, problem=problem, due_at=None, ended_at=UtcNow(), steps=event.steps + 1
        )

    _written(end, using)


def _mine(event: AuditEvent, using: str) -> QuerySet[AuditEvent]:
    return AuditEvent.objects.using(using).filter(pk=event.pk, steps=event.steps, due_at__isnull=False)


def _written(write: Callable[[], object], using: str) -> None:
    try:
        with vendor(using).locks.timed_transaction(connections[using], _LOCK_SECONDS):
            write()
    except Error:
        # The chunk stays due as it was.
        return


def change(verb: str, ids: Sequence[int], only: Q, *, using: str) -> int:
    """Apply `verb` to those of these jobs of which `only` is true when they are locked; how many it changed."""
    return _VERBS[verb](ids, using=using, only=only) if ids else 0


def _delete(ids: Sequence[int], *, using: str, only: Q) -> int:
    groups: dict[tuple[str, int], dict[int, datetime]] = defaultdict(dict)
    rows = Job.objects.using(using).filter(pk__in=list(ids)).annotate(matches=only)
    # Waits for locks as the other verbs do: delete_jobs() would leave out what others have locked.
    ended = vendor(using).force_index(rows.filter(status__in=_ENDED), "PRIMARY").order_by("pk").select_for_update()
    columns = ("matches", "pk", "queue", "status", Coalesce("finished_at", "updated_at"))
    for matches, job_id, queue, status, ended_at in ended.values_list(*columns):
        if matches:
            groups[queue, status][job_id] = ended_at
    keeps, gone = keep_by(load()), 0
    for (queue, status), jobs in sorted(groups.items()):
        try:
            keep = keeps(queue, Job.Status(status).name.lower())
            gone += len(delete_jobs(jobs, status, using=using, keep=keep))
        except REFUSALS:
            # A row of the project protects one of the jobs. The others are deleted one by one.
            gone += sum(delete_job(job_id, using=using) for job_id in jobs)
    return gone


class _Change(Protocol):
    def __call__(self, ids: Sequence[int], /, *, using: str, only: Q) -> int: ...


_VERBS: dict[str, _Change] = {
    AuditEvent.Verb.RETRY: retry_each,
    AuditEvent.Verb.CANCEL: cancel_each,
    AuditEvent.Verb.DISCARD: discard_each,
    AuditEvent.Verb.RELEASE: release_each,
    AuditEvent.Verb.PRUNE: _delete,
}
