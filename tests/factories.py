"""What tests make and look at: rows, and moments of the database's clock."""

import itertools
from contextlib import contextmanager
from datetime import timedelta

from asgiref.sync import async_to_sync
from django.db import connection, transaction

from jobqueue import enqueue
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.models import Job
from jobqueue.transitions import Lease, ack, cancel, claim, fail

_numbers = itertools.count(1)


def make_job(queue="q", payload=None, **columns):
    """The id of a new READY job that is due; other columns are set afterwards as they are given."""
    job_id = enqueue(queue, {"n": next(_numbers)} if payload is None else payload)
    if columns:
        set_columns(job_id, **columns)
    return job_id


def make_jobs(count, queue="q", **columns):
    """The ids of `count` jobs in the order they will run."""
    return [make_job(queue, **columns) for _ in range(count)]


def set_columns(job_id, **columns):
    """Write columns behind the product's back."""
    assert Job.objects.filter(pk=job_id).update(**columns) == 1


def claim_one(queue="q", worker="w", lease_seconds=60) -> Lease:
    """The lease of exactly one job."""
    (lease,) = claim(queue, worker=worker, lease_seconds=lease_seconds)
    return lease


def expire(*leases):
    """Let leases run out now: their end is a minute ago by the database's clock."""
    for lease in leases:
        set_columns(getattr(lease, "job_id", lease), lock_until=UtcNowPlus(-60))


def make_due(job_id):
    """Let a delayed job become due."""
    set_columns(job_id, run_at=UtcNowPlus(-1))


def row(job_id):
    """Every column of a job as the driver gives it, to compare byte for byte."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM job_queue WHERE id = %s", [job_id])
        names = [column[0] for column in cursor.description]
        return dict(zip(names, cursor.fetchone(), strict=True))


def job(job_id):
    """The job as a model instance, read now."""
    return Job.objects.get(pk=job_id)


def state(job_id):
    """The name of a job's state."""
    return Job.Status(job(job_id).status).name


def make_in_state(name, queue="q", **columns):
    """The id of a job brought into state `name`; its lease, if any, belongs to worker "owner"."""
    job_id = make_job(queue, **columns)
    if name == "CANCELED":
        assert cancel(job_id)
    elif name != "READY":
        lease = claim_one(queue, worker="owner")
        assert lease.job_id == job_id
        if name == "DONE":
            ack(lease, result={"ok": True})
        elif name == "FAILED":
            set_columns(job_id, max_attempts=1)
            fail(lease_with(lease, max_attempts=1), error="boom")
    assert state(job_id) == name
    return job_id


def lease_with(lease, **changes):
    """A lease that differs from `lease`."""
    return lease._replace(**changes)


@contextmanager
def undone():
    """A transaction that is rolled back at its end."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def now():
    """The database's clock, aware UTC."""
    return read_now("default")


def seconds_from_now(instant):
    """How far an instant lies ahead of the database's clock."""
    return (instant - now()) / timedelta(seconds=1)


def was_ahead(instant, least, most, *, since):
    """Whether an instant was so many seconds ahead when it was written, which was between `since` and now."""
    return since + timedelta(seconds=least) <= instant <= now() + timedelta(seconds=most)


def enqueue_times(count, call, *arguments):
    """`count` jobs of one task, committed together."""
    with transaction.atomic():
        for _ in range(count):
            call.enqueue(*arguments)


def run_lease(lease):
    """Run the job of a lease as a worker does, in this thread; its outcome, not settled."""
    from jobqueue.worker.run.perform import Run, is_coroutine, perform, perform_coroutine
    from jobqueue.worker.run.timeouts import Watch
    from jobqueue.worker.shared.scoreboard import LeaseSlot

    if is_coroutine(lease):
        return async_to_sync(perform_coroutine)(lease, LeaseSlot(), lambda: False)
    (outcome,) = perform([lease], Run(LeaseSlot(), Watch(), lambda: False))
    return outcome


def settle_run(lease, error=None):
    """Run the job of a lease, or let `error` be what it raised, and write down how it ended."""
    from types import SimpleNamespace

    from jobqueue.worker.child.outcomes import settle
    from jobqueue.worker.run.attempt import Attempt

    if error is None:
        outcome = run_lease(lease)
    else:
        attempt = Attempt(lease, lambda: False)
        with attempt:
            attempt.find()
            raise error
        outcome = attempt.outcome()
    assert settle([outcome], SimpleNamespace(finished=0, failed=0, lost=0, snoozed=0, discarded=0)) == []
