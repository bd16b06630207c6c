"""enqueue() and enqueue_many(): INSERT only, in the caller's transaction.

Models are imported inside the functions: `from jobqueue import enqueue` must work before the app registry is ready.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from django.apps import apps
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

from jobqueue import wakeup
from jobqueue.base.compat import Task
from jobqueue.base.payload import JSON, decode, encode
from jobqueue.base.validation import INT_MAX, check_instant, check_int, check_key, check_list
from jobqueue.conf import load
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import send_after_commit
from jobqueue.db.fields import Encoded
from jobqueue.db.retry import retry_looked_up, retry_transient
from jobqueue.exceptions import InsideCoroutine, InvalidType, InvalidValue
from jobqueue.middleware.chain import CONTEXT, NewJobContext, chain, context_of
from jobqueue.otel import enqueueing
from jobqueue.producer import insert
from jobqueue.producer.back_pressure import check_room, give_back
from jobqueue.producer.insert import NewJob, dated_insertion, insertion, read_created_at
from jobqueue.producer.queue_names import check_known
from jobqueue.signals import job_enqueued

logger = logging.getLogger("jobqueue.producer")

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
    UnknownQueue, QueueFull before anything is written; OutcomeUnknown when the connection broke during the commit;
    DatabaseBusy when a transaction that has used the same key does not end within 10 seconds.
    """
    job = new_job(
        queue, payload, priority=priority, run_at=run_at, max_attempts=max_attempts, ordering_key=ordering_key
    )
    if dedupe_key is not None:
        job = replace(job, dedupe_key=check_key(dedupe_key))
    try:
        return add(*with_context([job]), using=using)
    except SynchronousOnlyOperation:
        raise _inside_coroutine("enqueue") from None


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
    first = new_job(queue, None, priority=priority, run_at=run_at, max_attempts=max_attempts, ordering_key=ordering_key)
    make = first.maker()
    jobs = [make(payload=_encoded(payload, "payloads", index)) for index, payload in enumerate(payloads)]
    if dedupe_keys is not None:
        if len(dedupe_keys) != len(jobs):
            raise InvalidValue(f"{len(dedupe_keys)} dedupe_keys for {len(jobs)} payloads. Nothing was written.")
        keys = [None if key is None else check_key(key) for key in dedupe_keys]
        jobs = [replace(job, dedupe_key=key) for job, key in zip(jobs, keys, strict=True)]
    try:
        return add_many(with_context(jobs), using=using)
    except SynchronousOnlyOperation:
        raise _inside_coroutine("enqueue_many") from None


def _inside_coroutine(name: str) -> InsideCoroutine:
    how = f"write: await sync_to_async({name})(...), with sync_to_async from asgiref.sync"
    return InsideCoroutine(f"{name}()", how)


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
    if isinstance(queue, Task):
        raise InvalidType(
            f"enqueue() takes the name of a queue, got the task {queue.module_path}. Nothing was written; write "
            f"{queue.name}.enqueue(...)."
        )
    check_known(queue)
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


def add(
    job: NewJob,
    *,
    using: str | None = None,
    added: dict[int, NewJob] | None = None,
    key_wait_seconds: float = KEY_WAIT_SECONDS,
) -> int:
    """Insert one checked job; its id, or that of the job that holds its dedupe key. A new one is put into `added`."""
    alias, until = alias_of(using), time.monotonic() + key_wait_seconds
    added = {} if added is None else added
    with enqueueing([job]) as span:
        jobs = _with_headers([job], span.headers)
        _warn_if_early(jobs)
        room = check_room(jobs, alias)
        (job,) = room.jobs
        if job.dedupe_key is None:
            (job_id,) = retry_transient("enqueue", insertion([job], alias, until), using=alias, repeatable=False)
            added[job_id] = job
        else:
            from jobqueue.producer import dedupe

            job_id = retry_looked_up("enqueue", lambda: dedupe.add(job, alias, until, added), using=alias)
            give_back(room, added.values(), alias)
        span.wrote([job_id], len(added))
    _announce(added, [job_id], alias)
    return job_id


def add_dated(job: NewJob, *, using: str) -> tuple[int, datetime | None]:
    """Insert one checked job without a dedupe key; its id, and its created_at if the INSERT returned it."""
    connection, created_at = connections[using], None
    with enqueueing([job]) as span:
        jobs = _with_headers([job], span.headers)
        _warn_if_early(jobs)
        (job,) = check_room(jobs, using).jobs
        if job.ordering_key is None and not job.tags:
            work = dated_insertion(job, connection)
            job_id, created_at = retry_transient("enqueue", work, using=using, repeatable=False)
        else:
            (job_id,) = retry_transient("enqueue", insertion([job], using, _key_wait()), using=using, repeatable=False)
        span.wrote([job_id], 1)
    _announce({job_id: job}, [job_id], using)
    return job_id, None if created_at is None else read_created_at(created_at, connection)


def add_many(jobs: Sequence[NewJob], *, using: str | None = None, added: dict[int, NewJob] | None = None) -> list[int]:
    """Insert checked jobs in one transaction; ids in their order. Those that are new are put into `added`."""
    alias = alias_of(using)
    if not jobs:
        return []
    added = {} if added is None else added
    with enqueueing(jobs) as span:
        jobs = _with_headers(jobs, span.headers)
        _warn_if_early(jobs)
        room = check_room(jobs, alias)
        jobs = room.jobs
        write = _write_many(jobs, alias, added)
        if all(job.dedupe_key is not None for job in jobs):
            ids = retry_looked_up("enqueue", write, using=alias)
        else:
            ids = retry_transient("enqueue", write, using=alias, repeatable=False)
        give_back(room, [added[job_id] for job_id in {*ids} if job_id in added], alias)
        span.wrote(ids, len({*ids} & added.keys()))
    _announce(added, ids, alias)
    return ids


def _write_many(jobs: Sequence[NewJob], using: str, added: dict[int, NewJob]) -> Callable[[], list[int]]:
    """What inserts `jobs` in one transaction; called again, it looks for those of the call before."""
    from jobqueue.producer import dedupe

    keyed, until = any(job.dedupe_key is not None for job in jobs), _key_wait()
    add_chunk = partial(dedupe.add_many if keyed else dedupe.add_plain, using=using, until=until, added=added)
    last: list[int] = []

    def write() -> list[int]:
        new = next((job_id for job_id in last if job_id in added), None)
        if new is not None and dedupe.written_before(added[new], using, {new: added[new]}) is not None:
            return list(last)
        with transaction.atomic(using=using):
            last[:] = [job_id for chunk in insert.chunks(jobs, using) for job_id in add_chunk(chunk)]
        return list(last)

    return write


def add_unlimited(jobs: Sequence[NewJob], *, using: str) -> list[int]:
    """Insert checked jobs without dedupe keys in the open transaction, whatever waits in their queues; their ids.

    For jobs that follow from others, as callbacks of groups: MAX_READY and a drain hold up producers only.
    """
    added: dict[int, NewJob] = {}
    with enqueueing(jobs) as span:
        chunks = insert.chunks(_with_headers(jobs, span.headers), using)
        ids = [job_id for chunk in chunks for job_id in insertion(chunk, using, _key_wait())()]
        span.wrote(ids, len(ids))
    added.update(zip(ids, jobs, strict=True))
    _announce(added, ids, using)
    return ids


def with_context(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """The checked jobs with the contexts that JOBQUEUE["MIDDLEWARE"] gives them.

    Runs code of the project, so only where the project adds jobs. Raises what that raises; nothing is written here.
    """
    if not chain().enqueue:
        return jobs
    return [_in_context(job, context_of(_new_context(job))) for job in jobs]


def _new_context(job: NewJob) -> NewJobContext:
    payload = decode(job.payload)
    if job.task is None:
        return NewJobContext(None, job.queue, [payload], {})
    return NewJobContext(job.task, job.queue, payload["args"], payload["kwargs"])


def _in_context(job: NewJob, context: str | None) -> NewJob:
    return job if context is None else replace(job, options=_with_options(job.options, {CONTEXT: json.loads(context)}))


def _with_headers(jobs: Sequence[NewJob], headers: Mapping[str, str]) -> Sequence[NewJob]:
    """The jobs with what their runs need to find the span of this enqueue."""
    if not headers:
        return jobs
    # In the options, which a claim reads anyway: no column, and no statement more.
    texts = {own: _with_options(own, headers) for own in {job.options for job in jobs}}
    return [replace(job, options=texts[job.options]) for job in jobs]


def _with_options(own: Encoded | None, more: Mapping[str, JSON]) -> Encoded:
    return Encoded(json.dumps((json.loads(own) if own else {}) | dict(more), separators=(",", ":")))


def _warn_if_early(jobs: Sequence[NewJob]) -> None:
    """Log that each process adds these jobs again, if it is AppConfig.ready() that adds them."""
    if not apps.ready and any(job.dedupe_key is None for job in jobs):
        logger.warning(
            "a job of queue %s is added before Django is ready, probably by an AppConfig.ready(): that runs in every "
            "process and every command, and each adds such a job. Use a schedule, a command or a dedupe key.",
            jobs[0].queue,
        )


def _key_wait() -> float:
    return time.monotonic() + KEY_WAIT_SECONDS


def _encoded(payload: JSON, what: str, index: int | None = None) -> Encoded:
    if isinstance(payload, Encoded):
        return payload
    limit = load().max_payload_bytes
    return Encoded(encode(payload, max_bytes=limit, what=what if index is None else f"{what}[{index}]"))


def _announce(added: Mapping[int, NewJob], ids: Sequence[int], using: str) -> None:
    """Notify workers and send signals for those `ids` that this call has inserted, by whichever try."""
    new = {job_id: added[job_id] for job_id in ids if job_id in added}
    jobs = new.values()
    # By this host's clock, which is enough for a hint: if it is wrong, workers look in vain or find the job by polling.
    now = datetime.now(UTC)
    for queue in {job.queue for job in jobs if not job.gate and (job.run_at is None or job.run_at <= now)}:
        wakeup.notify(queue, using)
    if any(job.ordering_key for job in jobs):
        from jobqueue.ordering.promote import promote_next

        promote_next(((job.queue, job.ordering_key) for job in jobs), using=using)
    if job_enqueued.receivers:
        from jobqueue.models import Job

        for job_id, job in new.items():
            send_after_commit(job_enqueued, Job, job_id=job_id, queue=job.queue, task=job.task, using=using)
