"""Adding jobs: INSERT only, in the caller's transaction.

Models are imported inside the functions: `from jobqueue import enqueue` must work before the app registry is ready.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.db import Error, IntegrityError, connections, transaction

from jobqueue import wakeup
from jobqueue.conf import load
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, DedupeConflict, InvalidValue, PayloadError, UnknownQueue
from jobqueue.payload import JSON, encode
from jobqueue.producer import insert as insertion
from jobqueue.producer.allowed_queues import known_queues
from jobqueue.producer.insert import NewJob
from jobqueue.producer.key_wait import bounded_wait
from jobqueue.signals import job_enqueued, send
from jobqueue.validation import INT_MAX, check_instant, check_int, check_key, check_list, check_queue

logger = logging.getLogger("jobqueue.producer")

_ROUNDS = 4
#: how long an enqueue waits for the transaction that has used the same dedupe key or ordering key; far less than the
#: time that servers give a web request
KEY_WAIT_SECONDS = 10.0


def enqueue(
    queue: str,
    payload: JSON,
    *,
    priority: int = 0,
    run_at: datetime | None = None,
    dedupe_key: str | bytes | None = None,
    ordering_key: str | bytes | None = None,
    max_attempts: int | None = None,
    using: str | None = None,
) -> int:
    """Add a raw job for the @handler of `queue`; its id. Part of the caller's transaction, if there is one.

    `run_at` is an aware datetime (default: now, by the database's clock); larger `priority` runs first. With a
    `dedupe_key` that is still held, nothing is added and the id of the job that holds it is returned. Jobs of the queue
    with the same `ordering_key` run strictly one after another in the order of enqueue; it stays locked until COMMIT.
    Defaults: max_attempts of the queue (25). Raises InvalidValue, InvalidType, PayloadError, PayloadTooLarge,
    UnknownQueue before anything is written; OutcomeUnknown when the connection broke during the commit; DatabaseBusy
    when a transaction that has used the same key does not end within 10 seconds.
    """
    job = new_job(
        queue, payload, priority=priority, run_at=run_at, max_attempts=max_attempts, ordering_key=ordering_key
    )
    if dedupe_key is not None:
        job = replace(job, dedupe_key=check_key(dedupe_key))
    return add(job, using=using)


def enqueue_many(
    queue: str,
    payloads: Iterable[JSON],
    *,
    priority: int = 0,
    run_at: datetime | None = None,
    dedupe_keys: Sequence[str | bytes | None] | None = None,
    ordering_key: str | bytes | None = None,
    max_attempts: int | None = None,
    using: str | None = None,
) -> list[int]:
    """Add one raw job per payload, all or none; their ids in the order of the payloads, on every database.

    `dedupe_keys` has one key (or None) per payload; a key that is held, or comes twice, gives the existing job's id.
    Otherwise as enqueue().
    """
    check_list(payloads, "payloads", Iterable)
    if dedupe_keys is not None:
        check_list(dedupe_keys, "dedupe_keys", Sequence)
    rest: dict[str, Any] = {"priority": priority, "run_at": run_at, "max_attempts": max_attempts}
    first = new_job(queue, None, ordering_key=ordering_key, **rest)
    same: dict[str, Any] = {"queue": first.queue, "priority": first.priority, "run_at": first.run_at}
    make = partial(NewJob, **same, max_attempts=first.max_attempts, ordering_key=first.ordering_key)
    jobs = [make(payload=_encoded(payload, "payloads", index)) for index, payload in enumerate(payloads)]
    if dedupe_keys is not None:
        if len(dedupe_keys) != len(jobs):
            raise InvalidValue(f"{len(dedupe_keys)} dedupe_keys for {len(jobs)} payloads. Nothing was written.")
        keys = [None if key is None else check_key(key) for key in dedupe_keys]
        jobs = [replace(job, dedupe_key=key) for job, key in zip(jobs, keys, strict=True)]
    return add_many(jobs, using=using)


def new_job(
    queue: str,
    payload: JSON,
    *,
    priority: int = 0,
    run_at: datetime | None = None,
    max_attempts: int | None = None,
    ordering_key: str | bytes | None = None,
) -> NewJob:
    """Check and encode; nothing is written here."""
    check_queue(queue)
    names = known_queues()
    if names is not None and queue not in names:
        raise UnknownQueue(
            f"queue {queue!r} is not in TASKS['QUEUES'] ({', '.join(sorted(names))}). Nothing was written; "
            "add it there, or set QUEUES to [] to allow any name."
        )
    return NewJob(
        queue=queue,
        payload=_encoded(payload, "payload"),
        priority=check_int(priority, "priority", -INT_MAX - 1),
        run_at=None if run_at is None else check_instant(run_at),
        max_attempts=load().queue_max_attempts(queue)
        if max_attempts is None
        else check_int(max_attempts, "max_attempts", 1),
        ordering_key=None if ordering_key is None else check_key(ordering_key, "ordering_key"),
    )


def add(job: NewJob, *, using: str | None = None) -> int:
    """Insert one checked job; its id, or that of the job that holds its dedupe key."""
    alias, until = alias_of(using), _key_wait()
    if job.dedupe_key is None:
        (job_id,) = retry_transient(lambda: _insert([job], alias, until), using=alias, repeatable=False)
        _announce([job], [job_id], alias)
        return job_id
    added: dict[int, NewJob] = {}
    job_id = retry_transient(lambda: _add_keyed(job, alias, until, added), using=alias)
    _announce_added(added, [job_id], alias)
    return job_id


def add_one(job: NewJob, *, using: str) -> tuple[int, datetime]:
    """Insert one checked job without a dedupe key; its id and created_at."""
    until = _key_wait()

    def insert() -> tuple[int, datetime | None]:
        return (_insert([job], using, until)[0], None) if job.ordering_key else insertion.insert_one(job, using)

    job_id, created_at = retry_transient(insert, using=using, repeatable=False)
    _announce([job], [job_id], using)
    if created_at is None:
        # Not in the unit above: whoever repeats a read must not repeat the INSERT.
        created_at = _created_at(job_id, using)
    return job_id, created_at


def _created_at(job_id: int, using: str) -> datetime:
    try:
        return retry_transient(lambda: insertion.created_at(job_id, using), using=using)
    except (Error, DatabaseBusy) as error:
        if in_callers_transaction(connections[using]):
            raise
        # The job is committed, and whoever heard of an error would enqueue it again.
        logger.warning(
            "job %d was added, and the database cannot say when: %s; it gets this host's time", job_id, error
        )
        return datetime.now(UTC)


def add_many(jobs: Sequence[NewJob], *, using: str | None = None) -> list[int]:
    """Insert checked jobs in one transaction; ids in their order."""
    alias = alias_of(using)
    if not jobs:
        return []
    keyed, until = any(job.dedupe_key is not None for job in jobs), _key_wait()
    added: dict[int, NewJob] = {}
    add_chunk = partial(_add_keyed_chunk if keyed else _add_chunk, using=alias, until=until, added=added)

    def write() -> list[int]:
        with transaction.atomic(using=alias):
            return [job_id for chunk in insertion.chunks(jobs, alias) for job_id in add_chunk(chunk)]

    ids = retry_transient(write, using=alias, repeatable=keyed and all(job.dedupe_key is not None for job in jobs))
    _announce_added(added, ids, alias)
    return ids


def _key_wait() -> float:
    return time.monotonic() + KEY_WAIT_SECONDS


def _add_keyed(job: NewJob, using: str, until: float, added: dict[int, NewJob]) -> int:
    """One keyed job: look, insert, and look again when another transaction was faster.

    What this inserts is put into `added`: a later try, after a commit whose answer was lost, finds it there.
    """
    from jobqueue.producer import dedupe

    assert job.dedupe_key is not None
    for attempt in range(_ROUNDS):
        with bounded_wait(until, using) if attempt else nullcontext():
            found = dedupe.holder(job.queue, job.dedupe_key, using=using, after_conflict=attempt > 0)
        if found is not None:
            return found
        try:
            # The savepoint keeps the caller's transaction usable when the key is taken meanwhile.
            with bounded_wait(until, using):
                dedupe.free(job.queue, job.dedupe_key, using=using)
                (job_id,) = _add_chunk([job], using, until, added)
        except IntegrityError:
            continue
        return job_id
    raise DedupeConflict(
        f"dedupe key {job.dedupe_key!r} on queue {job.queue!r} is held by a job this transaction's snapshot cannot "
        "see. Nothing was written; retry the transaction, or use READ COMMITTED."
    )


def _add_chunk(jobs: Sequence[NewJob], using: str, until: float, added: dict[int, NewJob]) -> list[int]:
    ids = _insert(jobs, using, until)
    added.update(zip(ids, jobs, strict=True))
    return ids


def _add_keyed_chunk(jobs: Sequence[NewJob], using: str, until: float, added: dict[int, NewJob]) -> list[int]:
    """Jobs with keys: those that nobody holds in one INSERT, one by one only when a race was lost."""
    from jobqueue.producer import dedupe

    known = dedupe.holders(jobs[0].queue, [job.dedupe_key for job in jobs if job.dedupe_key], using=using)
    fresh, seen = [], set(known)
    for job in jobs:
        if job.dedupe_key is None or job.dedupe_key not in seen:
            fresh.append(job)
            seen.update([job.dedupe_key] if job.dedupe_key else [])
    try:
        with bounded_wait(until, using):
            for job in fresh:
                if job.dedupe_key is not None and job.dedupe_key in known.stale:
                    dedupe.free(job.queue, job.dedupe_key, using=using)
            ids = _add_chunk(fresh, using, until, added) if fresh else []
    except IntegrityError:
        one = partial(_add_chunk, using=using, until=until, added=added)
        return [_add_keyed(job, using, until, added) if job.dedupe_key else one([job])[0] for job in jobs]
    inserted = dict(zip([id(job) for job in fresh], ids, strict=True))
    by_key = {job.dedupe_key: job_id for job, job_id in zip(fresh, ids, strict=True) if job.dedupe_key}
    return [inserted.get(id(job)) or by_key.get(job.dedupe_key or b"") or known[job.dedupe_key or b""] for job in jobs]


def _insert(jobs: Sequence[NewJob], using: str, until: float) -> list[int]:
    """INSERT them; those with an ordering key also into their lanes."""
    keyed = [job.ordering_key is not None for job in jobs]
    if not any(keyed):
        return insertion.insert(jobs, using)
    from jobqueue.ordering import lanes

    keys = [(job.queue, job.ordering_key) for job in jobs if job.ordering_key is not None]
    with bounded_wait(until, using):
        # Before the ids are handed out, and until COMMIT: so the order of the ids is that of the commits.
        lanes.hold(keys, using)
        ids = insertion.insert(jobs, using)
        joining = [job_id for job_id, ordered in zip(ids, keyed, strict=True) if ordered]
        lanes.join([(lanes.lane_of(*key), job_id) for key, job_id in zip(keys, joining, strict=True)], using)
    return ids


def _encoded(payload: JSON, what: str, index: int | None = None) -> Encoded:
    if isinstance(payload, Encoded):
        return payload
    limit = load().max_payload_bytes
    if index is not None:
        what = f"{what}[{index}]"
    try:
        return Encoded(encode(payload, max_bytes=limit, what=what))
    except RecursionError:
        raise PayloadError(f"{what} refers to itself. Nothing was written.") from None


def _announce_added(added: dict[int, NewJob], ids: Sequence[int], using: str) -> None:
    """Tell of those `ids` that this call has inserted, by whichever try: others were there before."""
    new = [job_id for job_id in dict.fromkeys(ids) if job_id in added]
    _announce([added[job_id] for job_id in new], new, using)


def _announce(jobs: Sequence[NewJob], ids: Sequence[int], using: str) -> None:
    # By this host's clock, which is enough for a hint: a wrong one costs a look, or the wait for the next poll.
    now = datetime.now(UTC)
    for queue in {job.queue for job in jobs if not job.gate and (job.run_at is None or job.run_at <= now)}:
        wakeup.notify(queue, using)
    if any(job.ordering_key for job in jobs):
        from jobqueue.ordering.promote import promote_next

        promote_next(((job.queue, job.ordering_key) for job in jobs), using=using)
    if job_enqueued.receivers:
        from jobqueue.models import Job

        for job, job_id in zip(jobs, ids, strict=True):
            send(job_enqueued, Job, job_id=job_id, queue=job.queue, task=job.task, using=using)
