"""Dedupe keys: a live job holds its key, and a finished one for DEDUPE_SECONDS after its end.

Tasks with `unique` or `unique_seconds` hold theirs for another time, which their rows say. The next enqueue of a key
takes it from a job that holds it no longer, so an end needs no statement for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from django.db import IntegrityError, connections
from django.db.models import F, Q

from jobqueue import wakeup
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.parameters import placeholder
from jobqueue.exceptions import DedupeConflict
from jobqueue.models import Job
from jobqueue.models.job import UNFINISHED, WAITING, WINDOW, JobQuerySet
from jobqueue.models.rows import in_state
from jobqueue.producer.insert import NewJob, bounded_wait, insertion

#: looks for the holder of a key, each after a lost race
_ROUNDS = 4
LIVE = (Job.Status.READY, Job.Status.PROCESSING)


class Holders(dict[bytes, int]):
    """Job ids by key, and in `stale` the keys whose hold has run out."""

    def __init__(self) -> None:
        super().__init__()
        self.stale: set[bytes] = set()


def holder(queue: str, key: bytes, *, using: str, after_conflict: bool = False) -> int | None:
    """The id of the job that holds `key`, or None.

    After a unique conflict it reads past the caller's snapshot: in REPEATABLE READ the winner is not in it.
    A shared lock on the index entry does that without touching the job's row, so its holder can still settle it.
    """
    found = holders(queue, [key], using=using)
    if key in found:
        return found[key]
    if not after_conflict or key in found.stale:
        return None
    return _newest_id(queue, key, using)


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
    rows = Job.objects.using(using).filter(queue=queue, dedupe_key__in=list(keys)).annotate(lapsed=_lapsed())
    for job_id, key, lapsed in rows.values_list("pk", "dedupe_key", "lapsed"):
        if lapsed:
            found.stale.add(key)
        else:
            found[key] = job_id
    return found


def free(queue: str, key: bytes, *, using: str) -> None:
    """Take the key from a job whose hold has run out; keep it as released_key for retry, unless it was for the wait."""
    rows: JobQuerySet = Job.objects.using(using).filter(queue=queue, dedupe_key=key).annotate(lapsed=_lapsed())
    for job_id, status, fence, mode in rows.filter(lapsed=True).values_list("pk", "status", "fence", "unique_mode"):
        # Key and state again in the WHERE: another enqueue may have freed it, or a retry revived the job.
        row = in_state([job_id], status, using=using).filter(dedupe_key=key, fence=fence)
        row.update(released_key=None if mode == WAITING else key, dedupe_key=None, updated_at=UtcNow())


def _lapsed() -> Q:
    """Whether a job that has a key holds it no longer.

    Also of jobs whose claim did not free it, as that of another program; `fence` says that there was one.
    """
    seconds = load().dedupe_seconds
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
        with bounded_wait(until, using) if attempt else nullcontext():
            found = holder(job.queue, job.dedupe_key, using=using, after_conflict=attempt > 0)
        if found is not None:
            if job.replaces and not replace_waiting(found, job, using, until):
                continue  # it was claimed meanwhile: it may hold its key no longer
            return found
        try:
            # The savepoint keeps the caller's transaction usable when the key is taken meanwhile.
            with bounded_wait(until, using):
                free(job.queue, job.dedupe_key, using=using)
                (job_id,) = add_plain([job], using, until, added)
        except IntegrityError:
            continue
        return job_id
    if found is not None:
        return found
    raise DedupeConflict(
        f"dedupe key {job.dedupe_key!r} on queue {job.queue!r} is held by a job this transaction's snapshot cannot "
        "see. Nothing was written; retry the transaction, or use READ COMMITTED."
    )


def replace_waiting(job_id: int, job: NewJob, using: str, until: float) -> bool:
    """Give the waiting job of that id the payload, priority, run_at and expires_at of `job`. Others stay as they are.

    False if it was waiting and was claimed before it could be written.
    """
    rows = Job.objects.using(using).filter(pk=job_id)
    found = rows.values_list("status", "task", "gate", "fence").first()
    if found is None or found[:2] != (Job.Status.READY, job.task):
        return True
    with bounded_wait(until, using):
        row = in_state([job_id], Job.Status.READY, using=using).filter(dedupe_key=job.dedupe_key, fence=found[3])
        changed = row.update(
            payload=job.payload,
            priority=job.priority,
            run_at=job.run_at or UtcNow(),
            expires_at=job.expires_at,
            updated_at=UtcNow(),
            # A job behind a gate goes on to say what it waits for there.
            wait_reason=F("wait_reason") if found[2] else job.wait_reason,
        )
    if changed and job.run_at is None:
        wakeup.notify(job.queue, using)
    return bool(changed)


def add_plain(jobs: Sequence[NewJob], using: str, until: float, added: dict[int, NewJob]) -> list[int]:
    """Insert jobs without a dedupe key by one statement; their ids, which are put into `added` with the jobs."""
    ids = insertion(jobs, using, until)()
    added.update(zip(ids, jobs, strict=True))
    return ids


def add_many(jobs: Sequence[NewJob], using: str, until: float, added: dict[int, NewJob]) -> list[int]:
    """Jobs with dedupe keys: those whose key is free in one INSERT; one by one only after a lost race."""
    if jobs[0].replaces:
        # The last one of a key is what the job is to have.
        last = {job.dedupe_key: job for job in jobs}
        jobs = [last[job.dedupe_key] if job.dedupe_key else job for job in jobs]
    known = holders(jobs[0].queue, [job.dedupe_key for job in jobs if job.dedupe_key], using=using)
    if jobs[0].replaces and known:
        taken = {key: add(job, using, until, added) for key, job in last.items() if key in known}
        rest = [job for job in jobs if job.dedupe_key not in known]
        others = iter(add_many(rest, using, until, added) if rest else [])
        return [taken[job.dedupe_key] if job.dedupe_key in known else next(others) for job in jobs]
    fresh, seen = [], set(known)
    for job in jobs:
        if job.dedupe_key is None or job.dedupe_key not in seen:
            fresh.append(job)
            seen.update([job.dedupe_key] if job.dedupe_key else [])
    try:
        with bounded_wait(until, using):
            for job in fresh:
                if job.dedupe_key is not None and job.dedupe_key in known.stale:
                    free(job.queue, job.dedupe_key, using=using)
            ids = add_plain(fresh, using, until, added) if fresh else []
    except IntegrityError:
        one = partial(add_plain, using=using, until=until, added=added)
        return [add(job, using, until, added) if job.dedupe_key else one([job])[0] for job in jobs]
    inserted = dict(zip([id(job) for job in fresh], ids, strict=True))
    by_key = {job.dedupe_key: job_id for job, job_id in zip(fresh, ids, strict=True) if job.dedupe_key}
    return [inserted.get(id(job)) or by_key.get(job.dedupe_key or b"") or known[job.dedupe_key or b""] for job in jobs]
