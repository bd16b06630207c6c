"""What people do to jobs and ordering keys: cancel, discard, retry, run again, resume, and release or extend a lease.

Rows are found by their ids, locked, and written one by one, in one transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from django.db import IntegrityError, connections, transaction
from django.db.models import Case, F, Q, QuerySet, When
from django.db.models.lookups import Exact

from jobqueue import wakeup
from jobqueue.base.payload import JSON, encode
from jobqueue.base.validation import INT_MAX, check_id, check_key, check_queue, check_seconds
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import UtcNow, UtcNowPlus, read_now
from jobqueue.db.expressions import Unindexed
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import Verb, retry_transient
from jobqueue.exceptions import InvalidValue, LeaseLost
from jobqueue.failures import FailureCause
from jobqueue.gates.waiting import FLOW_GATE, ended_unstarted
from jobqueue.grouping.members import CALLBACK, MEMBER, PARENT
from jobqueue.grouping.nodes import outstanding_parents
from jobqueue.models import Job, JobTag, LaneEntry
from jobqueue.models.group import PARENTS_GATE, WAITS_FOR_PARENTS
from jobqueue.models.job import HELD_GATE, WAITING
from jobqueue.models.rows import in_state
from jobqueue.ordering import KEY_GATE, WAITS, lanes
from jobqueue.producer.enqueueing import add
from jobqueue.producer.insert import OPTIONAL_COLUMNS, NewJob
from jobqueue.producer.life import begins_again, keeps_first_due, with_first_due
from jobqueue.transitions.killing import KILL, kill_columns
from jobqueue.transitions.leases import RELEASED, Lease, canceled, lease_of
from jobqueue.transitions.releasing import release, release_many
from jobqueue.transitions.verb import JobRef, Portion, Written, end_in_groups, run_again_in_groups, run_verb

#: writes the row of a job that is locked; returns the column that holds the instant of its write, None: no write
Change: TypeAlias = Callable[[Job, str], str | None]
#: the new status, by that column
_STATUS_OF = {
    "finished_at": Job.Status.CANCELED,
    "run_at": Job.Status.READY,
    "updated_at": Job.Status.READY,
    "cancel_requested_at": Job.Status.PROCESSING,
}
_ANY_BYTES = 1 << 62
#: what a copy of a job does not have from it
_OF_ONE_LIFE = {"run_at", "dedupe_key", "expires_at", "unique_mode", "unique_seconds"}
_ENDED = (Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)


def cancel(job_id: int | str, *, kill_after_seconds: float | None = None, using: str | None = None) -> bool:
    """READY -> CANCELED. A running job is asked to stop: its context's should_stop becomes True at the next heartbeat.

    If it still runs `kill_after_seconds` from now (0: as soon as its worker has seen the request; None: never), its
    worker kills its process. It ends CANCELED, and JobAttempt keeps where it was; the other jobs of the process are
    READY again, uncharged, and may run twice. Of several calls the earliest instant counts.

    True if the job was canceled or asked; False if it does not exist or has finished. Raises InvalidValue, InvalidType.
    """
    if kill_after_seconds is None:
        return _operate("cancel", job_id, using, _cancel)
    seconds = check_seconds(kill_after_seconds, "kill_after_seconds", zero=True)
    return _operate("cancel", job_id, using, partial(_cancel, kill_after_seconds=seconds))


def discard(job_id: int | str, *, using: str | None = None) -> bool:
    """READY or FAILED -> CANCELED: taken out of the dead letters. False in any other state."""
    return _operate("discard", job_id, using, _discard)


def retry(job_id: int | str, *, using: str | None = None) -> bool:
    """FAILED or CANCELED -> READY with a fresh allowance of attempts; READY but delayed, or held -> due now.

    `attempts` stays, max_attempts grows, expires_at is forgotten. False in any other state, and while another live job
    holds the dedupe key this job once had. A job with an ordering key runs at its old place in the order if that still
    waits for it, else after those that are there now.
    """
    return _operate("retry", job_id, using, _retry)


def run_again(job_id: int | str, *, using: str | None = None) -> int:
    """Enqueue a copy of a job that has ended, due now; its id. The old job stays as it is.

    The copy has its queue, payload, task, options, priority, tags, ordering and concurrency key, and all attempts; it
    has no dedupe key and does not expire. Raises InvalidValue for a job that does not exist or has not ended,
    InvalidType, QueueFull before anything is written.
    """
    number, alias = check_id(job_id), alias_of(using)
    with explain_missing_table(alias):
        job: Job | None = retry_transient("enqueue", Job.objects.using(alias).filter(pk=number).first, using=alias)
    if job is None:
        raise InvalidValue(f"there is no job {number} in the database {alias!r}. Nothing was written; check the id.")
    if job.status not in _ENDED:
        raise InvalidValue(
            f"job {number} has not ended: it is {Job.Status(job.status).name}. Nothing was written; cancel it "
            "first, or wait for its end."
        )
    tags = JobTag.objects.using(alias).filter(job_id=number).order_by("pk").values_list("tag", flat=True)
    found = retry_transient("enqueue", partial(tuple, tags), using=alias)
    return add(_copy(job, found), using=alias)


def cancel_each(job_ids: Sequence[int], *, using: str, only: Q) -> int:
    """cancel() of each of which `only` is true when it is locked, in one transaction; how many were changed."""
    return operate("cancel", job_ids, _cancel, using=using, only=only)


def discard_each(job_ids: Sequence[int], *, using: str, only: Q) -> int:
    """discard() of each, in one transaction; how many were. `only` as in cancel_each()."""
    return operate("discard", job_ids, _discard, using=using, only=only)


def retry_each(job_ids: Sequence[int], *, using: str, only: Q) -> int:
    """retry() of each, in one transaction; how many were. `only` as in cancel_each()."""
    return operate("retry", job_ids, _retry, using=using, only=only)


def release_each(job_ids: Sequence[int], *, using: str, only: Q) -> int:
    """release_held() of each, in one transaction; how many were. `only` as in cancel_each()."""
    with vendor(using).transaction(connections[using]):
        running = [
            job for job, matches in lock(job_ids, using, only) if matches and job.status == Job.Status.PROCESSING
        ]
        lost = release_many([lease_of(job, using) for job in running])
        for queue in {job.queue for job in running}:
            wakeup.notify(queue, using)
    return len(running) - len(lost)


def release_held(job_id: int | str, *, using: str | None = None) -> bool:
    """PROCESSING -> READY by an operator: ends the lease without using an attempt; its holder's ack is refused.

    False if the job is not running, or its lease ended meanwhile.
    """
    alias = alias_of(using)
    running = rows_of([check_id(job_id)], alias).filter(status=Job.Status.PROCESSING)
    with explain_missing_table(alias):
        job: Job | None = retry_transient("release", running.first, using=alias)
    if job is None:
        return False
    try:
        release(lease_of(job, alias))
    except LeaseLost:
        return False
    wakeup.notify(job.queue, alias)
    return True


def extend_held(job_id: int | str, seconds: float, *, using: str | None = None) -> bool:
    """Let the lease of a running job last at least `seconds` from now, by an operator. One statement.

    False if the job is not running, or its lease has run out. A holder that renews its lease sets the end anew.
    """
    alias, until = alias_of(using), UtcNowPlus(check_seconds(seconds, "seconds"))
    running = rows_of([check_id(job_id)], alias).filter(Exact(Unindexed("status"), int(Job.Status.PROCESSING)))
    living = running.filter(lock_until__gt=UtcNow())
    longer = Case(When(lock_until__gt=until, then=F("lock_until")), default=until)
    with explain_missing_table(alias):
        extend = partial(living.update, lock_until=longer, updated_at=UtcNow())
        return bool(retry_transient("heartbeat", extend, using=alias))


def resume(queue: str, ordering_key: str | bytes, *, using: str | None = None) -> bool:
    """Let an ordering key continue that a failed job blocks or halts: that job stays FAILED, and the next one runs.

    False if the key is not blocked. Raises InvalidValue, InvalidType.
    """
    alias = alias_of(using)
    raw = check_key(ordering_key, "ordering_key")
    lane = lanes.lane_of(check_queue(queue), raw)
    seen: set[tuple[int, bool]] = set()

    def write(tries: int) -> Written:
        found = _free_lane(lane, alias, seen)
        return {} if found is None else {Job.Status.FAILED: [JobRef(found, queue, None, raw, alias)]}

    return bool(run_verb("resume", [Portion(alias, write)], {}).written)


def _operate(verb: Verb, job_id: int | str, using: str | None, change: Change) -> bool:
    """Let `change` write one row; whether it did."""
    return bool(operate(verb, [check_id(job_id)], change, using=alias_of(using)))


def _cancel(job: Job, using: str, kill_after_seconds: float | None = None) -> str | None:
    if job.status == Job.Status.PROCESSING:
        kill = {} if kill_after_seconds is None else kill_columns(job, kill_after_seconds, using)
        asked = _write(job, using, cancel_requested_at=UtcNow(), updated_at=UtcNow(), **kill)
        return "cancel_requested_at" if asked else None
    return _end(job, using) if job.status == Job.Status.READY else None


def _retry(job: Job, using: str) -> str | None:
    return "run_at" if make_due(job, using) else None


def _discard(job: Job, using: str) -> str | None:
    return _end(job, using) if job.status in (Job.Status.READY, Job.Status.FAILED) else None


def _end(job: Job, using: str) -> str | None:
    return "finished_at" if _write(job, using, **canceled()) else None


def make_due(job: Job, using: str) -> bool:
    """retry() of a job whose row is locked; whether it changed."""
    if job.status == Job.Status.READY:
        return _begin_now(job, using)
    if job.status not in (Job.Status.FAILED, Job.Status.CANCELED):
        return False
    # A key that was for the wait does not come back.
    keys: dict[str, object] = {"dedupe_key": None} if job.unique_mode == WAITING else {}
    if job.released_key is not None:
        if not _take_key_back(job, using):
            return False
        keys = {"dedupe_key": job.released_key, "released_key": None}
    changes = {
        **new_life(job),
        **begins_again(job, partial(read_now, using)),
        "epoch": job.epoch + 1,
        # Nobody opens the gate of a job that has ended; the next claim closes it again, if it has to.
        **({"gate": 0} if job.gate in (HELD_GATE, FLOW_GATE) else {}),
        **(_gate_of_node(job, using) if job.gate == PARENTS_GATE else {}),
        **keys,
    }
    try:
        with transaction.atomic(using=using):
            if job.ordering_key is not None:
                changes |= _return_to_lane(job, using)
            done = _write(job, using, **changes)
            if not done:
                transaction.set_rollback(True, using=using)
            else:
                run_again_in_groups([job], using)
            return done
    except IntegrityError:
        # An enqueue of the same key was committed since we looked.
        return False


def _gate_of_node(job: Job, using: str) -> dict[str, object]:
    """Of a node that was canceled while it waited for its parents: it waits for those that have not ended."""
    # Should the last one end at this moment, a sweep opens the gate.
    waits = outstanding_parents(job.pk, using).exists()
    return {"wait_reason": WAITS_FOR_PARENTS} if waits else {"gate": 0}


def new_life(job: Job) -> dict[str, object]:
    """The columns of a job that has ended and becomes READY by retry(), without its epoch."""
    allowance = job.allowance or job.max_attempts
    # last_error is then the reason of a Discard, or that it expired: nothing that a later end would mean.
    no_failure = job.status == Job.Status.CANCELED and job.cause in (None, FailureCause.EXPIRED)
    return {
        "status": Job.Status.READY,
        "run_at": UtcNow(),
        "updated_at": UtcNow(),
        "finished_at": None,
        "cancel_requested_at": None,
        "expires_at": None,
        "wait_reason": None,
        "allowance": allowance,
        "max_attempts": min(INT_MAX, job.attempts + allowance),
        **({"last_error": None, "cause": None} if no_failure else {}),
        **RELEASED,
    }


def _begin_now(job: Job, using: str) -> bool:
    """READY -> READY: delayed, or held after a crash."""
    if job.gate == HELD_GATE:
        changes: dict[str, object] = {"gate": 0, "wait_reason": None}
    elif job.run_at <= read_now(using):
        return False
    else:
        changes = {"wait_reason": job.wait_reason if job.gate else None}
    changes |= begins_again(job, partial(read_now, using))
    return _write(job, using, run_at=UtcNow(), updated_at=UtcNow(), **changes)


def _take_key_back(job: Job, using: str) -> bool:
    """Free the key this job once had from a finished job; False while a live one holds it."""
    # A locking read waits for an enqueue of this key that is under way.
    rows = Job.objects.using(using).filter(queue=job.queue, dedupe_key=job.released_key)
    for holder_id, status in rows.select_for_update().values_list("pk", "status"):
        if status in (Job.Status.READY, Job.Status.PROCESSING):
            return False
        freed = {"dedupe_key": None, "released_key": job.released_key, "updated_at": UtcNow()}
        in_state([holder_id], status, using=using).update(**freed)
    return True


def _write(job: Job, using: str, **changes: Any) -> bool:
    # The WHERE proves the state again: the row lock only makes it rarely fail.
    return bool(in_state([job.pk], job.status, using=using).filter(fence=job.fence).update(**changes))


def _free_lane(lane: int, using: str, seen: set[tuple[int, bool]]) -> int | None:
    """The failed job that blocked the lane and does not any more. `seen`: the heads that this and earlier tries met.

    An earlier try may have been committed without an answer; then another head is found, or none.
    """
    with vendor(using).transaction(connections[using]):
        heads = lanes.front(lane, using=using, depth=1)
        if seen and not seen & {(head.id, head.halted) for head in heads}:
            return 0
        for head in heads:
            seen.add((head.id, head.halted))
            # The job first, as in retry; and its state as it is now, whatever this transaction's snapshot shows.
            jobs = Job.objects.using(using).filter(pk=head.job_id).select_for_update()
            status = jobs.values_list("status", flat=True).first()
            entry = LaneEntry.objects.using(using).filter(pk=head.id)
            if not entry.select_for_update().values_list("pk", flat=True):
                return None
            if status == Job.Status.FAILED:
                freed = bool(vendor(using).delete_by_key(entry, [head.id]))
            else:
                freed = bool(entry.filter(halted=True).update(halted=False))
            return head.job_id if freed else None
    return None


def _return_to_lane(job: Job, using: str) -> dict[str, object]:
    """The columns of a finished `job` with an ordering key that becomes READY in this transaction.

    It keeps its entry in the lane if that still exists; else it is appended to the lane.
    """
    assert job.ordering_key is not None
    entries = LaneEntry.objects.using(using)
    found = entries.filter(job_id=job.pk).values_list("pk", flat=True).first()
    # Written by its key, as those who remove it do: a snapshot from before must not let it be removed after us.
    if found is not None and entries.filter(pk=found).update(halted=F("halted")):
        return {"wait_reason": WAITS if job.gate == KEY_GATE else None}
    lanes.hold([(job.queue, job.ordering_key)], using)
    lanes.join([(lanes.lane_of(job.queue, job.ordering_key), job.pk)], using)
    return {"gate": KEY_GATE, "wait_reason": WAITS}


@dataclass(slots=True)
class _Write:
    """The last try's write: the column that holds its instant, and that instant.

    No other write of the job has both, so a try after a lost answer recognizes its own work by them.
    """

    column: str = ""
    instant: datetime | None = None
    key: bytes | None = None  # the job's concurrency key


def operate(
    verb: Verb,
    ids: Sequence[int],
    change: Change,
    *,
    using: str,
    only: Q | None = None,
    first: Callable[[], None] | None = None,
) -> int:
    """Let `change` write the jobs of `ids`, in one transaction; how many it wrote. `only` as in lock().

    `first` is called in the transaction before the jobs are locked.
    """
    made: dict[int, _Write] = {}

    def write(tries: int) -> Written:
        written: dict[Job.Status, list[Lease | JobRef]] = defaultdict(list)
        changed: list[tuple[int, object, Job.Status]] = []
        with vendor(using).transaction(connections[using]):
            if first is not None:
                first()
            for job, matches in lock(ids, using, only):
                done = made.setdefault(job.pk, _Write())
                # The work of an earlier try has been done, though the job does not match any more.
                if not (done.instant and getattr(job, done.column) == done.instant):
                    changed_at = change(job, using) if matches else None
                    done.column, done.instant, done.key = changed_at or "", None, job.concurrency_key
                    if not done.column:
                        continue
                    changed.append((job.pk, job.options, _STATUS_OF[done.column]))
                    done.instant = rows_of([job.pk], using).values_list(done.column, flat=True).get()
                ref = JobRef(job.pk, job.queue, job.task, job.ordering_key, using)
                written[_STATUS_OF[done.column]].append(ref)
            end_in_groups(changed, using)
        return written

    found = run_verb(verb, [Portion(using, write)], {}).written
    _tell(found, made, using)
    return sum(map(len, found.values()))


def _tell(written: Written, made: Mapping[int, _Write], using: str) -> None:
    for queue in {job.queue for job in written.get(Job.Status.READY, ())}:
        wakeup.notify(queue, using)
    for job in written.get(Job.Status.CANCELED, ()):
        # It may have been opened for a slot or a token.
        ended_unstarted([(job.task, made[job.job_id].key)], job.queue, using=using)


def lock(ids: Sequence[int], using: str, only: Q | None = None) -> list[tuple[Job, bool]]:
    """Lock the jobs of `ids` in this transaction, in the order of their ids; and whether `only` is true of each now.

    Ids that were found by a filter say nothing about the rows as they are when they are locked.
    """
    rows = rows_of(ids, using).order_by("pk").select_for_update()
    if only is None:
        return [(job, True) for job in rows]
    # Among the columns, and not in WHERE: there it could lead to an index through which other rows are locked.
    return [(job, job.matches) for job in rows.annotate(matches=only)]


def rows_of(ids: Sequence[int], using: str) -> QuerySet[Job]:
    """The jobs of `ids`, without what may be large."""
    rows = Job.objects.using(using)
    # Django answers for an id that no column holds only where it is compared alone.
    found = rows.filter(pk=ids[0]) if len(ids) == 1 else rows.filter(pk__in=ids)
    return found.defer("payload", "result", "last_error")


def _copy(job: Job, tags: tuple[str, ...]) -> NewJob:
    options: JSON = job.options
    if isinstance(options, dict):
        # The copy is no member of a group.
        left = (MEMBER, CALLBACK, PARENT, KILL)
        options = {name: value for name, value in options.items() if name not in left} or None
    if isinstance(options, dict) and keeps_first_due(options):
        # The time within which it may be retried begins anew.
        options = with_first_due(options, None)
    columns = {name: getattr(job, name) for name in OPTIONAL_COLUMNS if name not in _OF_ONE_LIFE}
    columns["max_attempts"] = job.allowance or job.max_attempts
    columns["options"] = None if options is None else _encoded(options)
    return NewJob(job.queue, _encoded(job.payload), **columns, tags=tags)


def _encoded(value: JSON) -> Encoded:
    # Whatever the limit is now: it has been stored once.
    return Encoded(encode(value, max_bytes=_ANY_BYTES, what="the payload of the old job"))
