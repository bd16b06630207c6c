"""Dedupe keys: a live job holds its key, and a finished one for DEDUPE_SECONDS after its end.

The jobs of tasks with `unique` or `unique_seconds` hold theirs as the columns of these names say. The next enqueue of a
key takes it from a job that holds it no longer, so an end needs no statement for that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

from django.db import IntegrityError, connections
from django.db.models import F, Q

from jobqueue import wakeup
from jobqueue.base.payload import JSON
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus, read_now
from jobqueue.db.expressions import Slot
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.statements import placeholder
from jobqueue.exceptions import DedupeConflict
from jobqueue.gates.waiting import FLOW_GATE, ended_unstarted, open_again
from jobqueue.middleware.chain import CONTEXT
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE, UNFINISHED, WAITING, WINDOW
from jobqueue.models.rows import in_state
from jobqueue.ordering import SCHEDULED, lanes
from jobqueue.ordering.promote import promote_next
from jobqueue.producer.insert import NewJob, bounded_wait, insertion
from jobqueue.producer.life import keeps_first_due, with_first_due

#: looks for the holder of a key, each after a lost race
_ROUNDS = 4
LIVE = (Job.Status.READY, Job.Status.PROCESSING)
#: of a job that may be replaced
_REPLACED = ("status", "task", "gate", "fence", "attempts", "options", "ordering_key", "concurrency_key")


class Holders(dict[bytes, int]):
    """Job ids by key, and in `stale` the keys whose hold has run out."""

    def __init__(self) -> None:
        super().__init__()
        self.stale: set[bytes] = set()


class _KeyRow(NamedTuple):
    """The job that has a key; `lapsed`: it holds it no longer."""

    id: int
    status: int
    fence: int
    unique_mode: int
    lapsed: bool


def _key_row(queue: str, key: bytes, using: str) -> _KeyRow | None:
    """The job that has `key`, as this transaction sees it. Locks nothing."""
    found = _key_rows(using, load().dedupe_seconds).rows(queue=queue, key=key)
    return _KeyRow(*found[0]) if found else None


@cache
def _key_rows(using: str, seconds: float | None) -> Prepared:
    # Prepared: Django takes longer to build this query than the database to insert the job.
    fields: dict[str, Any] = {field.name: field for field in Job._meta.concrete_fields}
    slots = {"queue": Slot("queue", fields["queue"]), "dedupe_key": Slot("key", fields["dedupe_key"])}
    rows = Job.objects.using(using).filter(**slots).annotate(lapsed=_lapsed(seconds))
    return prepare_rows(rows.values_list("pk", *_KeyRow._fields[1:]))


def _newest_id(queue: str, key: bytes, using: str) -> int | None:
    """The id of the committed job with this key, whatever this transaction's snapshot shows."""
    connection, dialect = connections[using], vendor(using)
    table, digits = connection.ops.quote_name(Job._meta.db_table), dialect.binary_parameter(connection, key)
    name = dialect.text_parameter(connection, queue)
    where = f"queue = {placeholder(name)} AND dedupe_key = {placeholder(digits)}"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {table} WHERE {where} {dialect.shared_lock_sql}", [name, digits])
        row = cursor.fetchone()
    return row[0] if row else None


def holders(queue: str, keys: Sequence[bytes], *, using: str) -> Holders:
    """Which of `keys` are held, and by which jobs. Locks nothing."""
    found = Holders()
    rows = Job.objects.using(using).filter(queue=queue, dedupe_key__in=list(keys))
    rows = rows.annotate(lapsed=_lapsed(load().dedupe_seconds))
    for job_id, key, lapsed in rows.values_list("pk", "dedupe_key", "lapsed"):
        if lapsed:
            found.stale.add(key)
        else:
            found[key] = job_id
    return found


def free(queue: str, key: bytes, *, using: str) -> None:
    """Take the key from a job whose hold has run out; keep it as released_key for retry, unless it was for the wait."""
    found = _key_row(queue, key, using)
    if found is None or not found.lapsed:
        return
    job_id, status, fence, mode, _ = found
    # Key and state again in the WHERE: another enqueue may have freed it, or a retry revived the job.
    row = in_state([job_id], status, using=using).filter(dedupe_key=key, fence=fence)
    row.update(released_key=None if mode == WAITING else key, dedupe_key=None, updated_at=UtcNow())


def _lapsed(seconds: float | None) -> Q:
    """Whether a job that has a key holds it no longer.

    Also of jobs whose claim did not free it, as that of another program; `fence` says that there was one.
    """
    ended = ~Q(status__in=LIVE)
    in_window = Q(pk__isnull=True) if seconds is None else Q(finished_at__lt=UtcNowPlus(-seconds))
    return (
        (Q(unique_mode=WINDOW, unique_seconds__isnull=True) & ended & in_window)
        | (Q(unique_mode=WAITING) & (~Q(status=Job.Status.READY) | Q(fence__gt=0)))
        | (Q(unique_mode=UNFINISHED) & ended)
        | (Q(unique_seconds__isnull=False) & Q(created_at__lt=UtcNowPlus(-F("unique_seconds"))))
    )


def add(job: NewJob, using: str, until: float, added: dict[int, NewJob]) -> int:
    """One job with a dedupe key: look for its holder, insert, and look again if another transaction was faster.

    An inserted job is put into `added`, where a later try finds it after a commit whose answer was lost.
    """
    assert job.dedupe_key is not None
    for attempt in range(_ROUNDS):
        # In each round: the commit of an earlier try may come to its end while this one waits for the key.
        if (earlier := written_before(job, using, added)) is not None:
            return earlier
        with bounded_wait(until, using) if attempt else nullcontext():
            row = _key_row(job.queue, job.dedupe_key, using)
            # After a conflict it reads past the caller's snapshot: in REPEATABLE READ the winner is not in it. A shared
            # lock on the index entry does that without touching the job's row, so its holder can still settle it.
            newest = _newest_id(job.queue, job.dedupe_key, using) if attempt and row is None else None
        found = newest if row is None or row.lapsed else row.id
        if found is not None and (not job.replaces or replace_waiting(found, job, using, until)):
            return found
        # One that was claimed meanwhile holds its key no longer, even if an old snapshot shows it as it was.
        try:
            # The savepoint keeps the caller's transaction usable when the key is taken meanwhile.
            with bounded_wait(until, using):
                if attempt or row is not None:
                    free(job.queue, job.dedupe_key, using=using)
                (job_id,) = add_plain([job], using, until, added)
        except IntegrityError:
            continue
        return job_id
    raise DedupeConflict(
        f"dedupe key {job.dedupe_key!r} on queue {job.queue!r} is held by a job that this transaction's snapshot does "
        "not show as it is. Nothing was written; retry the transaction, or use READ COMMITTED."
    )


def written_before(job: NewJob, using: str, added: Mapping[int, NewJob]) -> int | None:
    """The id of the job as an earlier try has committed it without an answer; its key may be free again by now."""
    ids = [job_id for job_id, one in added.items() if one is job]
    if not ids:
        return None
    # A server that took over may have lost the row, and given its id to another job.
    rows = Job.objects.using(using).filter(pk__in=ids, task=job.task).values_list("pk", "payload")
    return next((job_id for job_id, payload in rows if payload == json.loads(job.payload)), None)


def replace_waiting(job_id: int, job: NewJob, using: str, until: float) -> bool:
    """Give the waiting job of that id what `job` has of its arguments: payload, times, priority and keys.

    It goes behind the others of its new ordering key, and the time within which it may be retried begins again. Others
    stay as they are. False if it was waiting and was claimed before it could be written.
    """
    found = Job.objects.using(using).filter(pk=job_id).only(*_REPLACED).first()
    if found is None or (found.status, found.task) != (Job.Status.READY, job.task):
        return True
    moves = found.gate not in (HELD_GATE, PARENTS_GATE) and found.ordering_key != job.ordering_key
    limited_by = found.concurrency_key if found.concurrency_key != job.concurrency_key else None
    with bounded_wait(until, using):
        if moves and job.ordering_key is not None:
            # Before the job is locked, as by those who add one.
            lanes.hold([(job.queue, job.ordering_key)], using)
        # An edit may have changed its queue or its keys since it was read.
        row = in_state([job_id], Job.Status.READY, using=using, queue=job.queue).filter(dedupe_key=job.dedupe_key)
        row = row.filter(gate=found.gate, fence=found.fence, ordering_key=found.ordering_key)
        changed = row.update(
            payload=job.payload,
            priority=job.priority,
            run_at=job.run_at or UtcNow(),
            expires_at=job.expires_at,
            concurrency_key=job.concurrency_key,
            updated_at=UtcNow(),
            # A job behind a gate goes on to say what it waits for there.
            wait_reason=F("wait_reason") if found.gate else _later(job),
            options=_options(found, job, using),
        )
        if changed and found.gate == FLOW_GATE:  # There it has the place of the old priority, time and key.
            open_again(job_id, _later(job), using)
        if changed and moves:
            lanes.move(job_id, job.queue, job.ordering_key, _later(job), using)
    if changed and moves:
        promote_next([(job.queue, found.ordering_key), (job.queue, job.ordering_key)], using=using)
    if changed and limited_by is not None:
        ended_unstarted([(job.task, limited_by)], job.queue, using=using)
    if changed and job.run_at is None:
        wakeup.notify(job.queue, using)
    return bool(changed)


def _later(job: NewJob) -> str | None:
    return None if job.run_at is None else SCHEDULED


def _options(found: Job, job: NewJob, using: str) -> JSON | F:
    """Those that the row has, with the context of the new arguments, and with another beginning of the job's life."""
    known = found.options if isinstance(found.options, dict) else {}
    given = json.loads(job.options) if job.options else {}
    wanted = {name: value for name, value in known.items() if name != CONTEXT}
    wanted |= {CONTEXT: given[CONTEXT]} if CONTEXT in given else {}
    if keeps_first_due(known):
        wanted = with_first_due(wanted, job.run_at or read_now(using), found.attempts)
    return F("options") if wanted == known else wanted


def add_plain(jobs: Sequence[NewJob], using: str, until: float, added: dict[int, NewJob]) -> list[int]:
    """Insert jobs without a dedupe key by one statement; their ids, which are put into `added` with the jobs."""
    ids = insertion(jobs, using, until)()
    added.update(zip(ids, jobs, strict=True))
    return ids


#: keys are unique in a queue only
_Place: TypeAlias = tuple[str, bytes]


def _place(job: NewJob) -> _Place | None:
    return None if job.dedupe_key is None else (job.queue, job.dedupe_key)


def _known(jobs: Sequence[NewJob], using: str) -> tuple[dict[_Place, int], set[_Place]]:
    """The ids of the jobs that hold keys of these, and the keys whose hold has run out."""
    keys: dict[str, list[bytes]] = {}
    for job in jobs:
        if job.dedupe_key is not None:
            keys.setdefault(job.queue, []).append(job.dedupe_key)
    held: dict[_Place, int] = {}
    stale: set[_Place] = set()
    for queue, given in keys.items():
        found = holders(queue, given, using=using)
        held |= {(queue, key): job_id for key, job_id in found.items()}
        stale |= {(queue, key) for key in found.stale}
    return held, stale


def add_many(jobs: Sequence[NewJob], using: str, until: float, added: dict[int, NewJob]) -> list[int]:
    """Jobs with dedupe keys: those whose key is free in one INSERT; one by one only after a lost race."""
    # The last one of a key is what the job is to have.
    last = {_place(job): job for job in jobs if job.replaces and job.dedupe_key is not None}
    jobs = [last.get(_place(job), job) for job in jobs]
    known, stale = _known(jobs, using)
    ids: dict[_Place | None, int] = dict(known.items())
    for place, job in last.items():
        if place in known:
            ids[place] = add(job, using, until, added)
    fresh, seen = [], {*known}
    for job in jobs:
        place = _place(job)
        if place is None or place not in seen:
            fresh.append(job)
            seen.update([place] if place else [])
    try:
        with bounded_wait(until, using):
            for queue, key in sorted({*filter(None, map(_place, fresh))} & stale):
                free(queue, key, using=using)
            inserted = add_plain(fresh, using, until, added) if fresh else []
    except IntegrityError:
        one = partial(add_plain, using=using, until=until, added=added)
        return [add(job, using, until, added) if job.dedupe_key else one([job])[0] for job in jobs]
    plain = iter([job_id for job, job_id in zip(fresh, inserted, strict=True) if job.dedupe_key is None])
    ids |= {_place(job): job_id for job, job_id in zip(fresh, inserted, strict=True) if job.dedupe_key is not None}
    return [next(plain) if job.dedupe_key is None else ids[_place(job)] for job in jobs]
