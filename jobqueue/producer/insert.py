"""The INSERT statements of the job table, written by hand, and their bounded wait for a key that others use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db import vendor, vendor_of
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.clock import read_now
from jobqueue.db.fields import Encoded
from jobqueue.db.prepared import in_chunks
from jobqueue.exceptions import DatabaseBusy
from jobqueue.ordering import KEY_GATE, SCHEDULED, WAITS

# One statement stays far below the smallest default max_allowed_packet (MariaDB, 16 MB).
_STATEMENT_BYTES = 4_000_000
# In autocommit mode a shorter limit of the session is retried until the time is over; this is the minimum.
_LEAST_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class NewJob:
    """One job to insert, checked and encoded."""

    queue: str
    payload: Encoded
    priority: int = 0
    max_attempts: int = 25
    task: str | None = None
    dedupe_key: bytes | None = None
    lease_seconds: float | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    options: Encoded | None = None
    ordering_key: bytes | None = None
    concurrency_key: bytes | None = None
    dependency: str | None = None
    unique_mode: int = 0  # models.job.WINDOW
    unique_seconds: float | None = None
    replaces: bool = False  # it takes the place of a waiting job that holds its dedupe key
    tags: tuple[str, ...] = ()
    waits: tuple[int, str] | None = None  # the gate at which it waits for other jobs, and its wait_reason

    @property
    def has_keys(self) -> bool:
        """Whether its INSERT may wait for another transaction, or add nothing."""
        return self.dedupe_key is not None or self.ordering_key is not None

    @property
    def gate(self) -> int:
        """KEY_GATE while other jobs with its ordering key may come first."""
        if self.waits is not None:
            return self.waits[0]
        return 0 if self.ordering_key is None else KEY_GATE

    @property
    def wait_reason(self) -> str | None:
        """Why the job waits; None if it does not."""
        if self.waits is not None:
            return self.waits[1]
        if self.ordering_key is not None:
            return WAITS
        # Also for an instant that has passed: only the database's clock could tell. The claim removes the reason.
        return None if self.run_at is None else SCHEDULED

    def maker(self) -> Callable[..., NewJob]:
        """A function that makes a job like this one, but for the fields that it is given.

        For many jobs: dataclasses.replace() reads all fields again for each.
        """
        return partial(NewJob, **{name: getattr(self, name) for name in _FIELDS})


_FIELDS = {one.name: one.default for one in fields(NewJob)}
#: the columns of a NewJob that may be left out, with their defaults in the database. An INSERT leaves out those that no
#: job has set, for each value costs time per row
OPTIONAL_COLUMNS = {
    name: default for name, default in _FIELDS.items() if name not in ("queue", "payload", "replaces", "tags", "waits")
}
_OPTIONAL = attrgetter(*OPTIONAL_COLUMNS)


def insertion(jobs: Sequence[NewJob], using: str, until: float) -> Callable[[], list[int]]:
    """A function that inserts `jobs` with one statement and returns their ids in their order.

    Jobs with an ordering key are also appended to their lanes; `until` (monotonic) limits the wait for the key. The
    INSERT is written by hand: Django's bulk_create returns no ids on MySQL and costs several times as much.
    """
    connection = connections[using]
    work = partial(vendor_of(connection).insert, connection, _job_table().name, *_columns(jobs, connection))
    if any(job.tags for job in jobs):
        work = partial(_tagged, work, jobs, using)
    return partial(_in_lanes, work, jobs, using, until) if any(job.ordering_key for job in jobs) else work


def _tagged(work: Callable[[], list[int]], jobs: Sequence[NewJob], using: str) -> list[int]:
    from jobqueue.models import JobTag

    with transaction.atomic(using=using):
        ids = work()
        rows = [(job_id, tag) for job_id, job in zip(ids, jobs, strict=True) for tag in job.tags]
        most, table = vendor(using).insert_rows_max, JobTag._meta.db_table
        for begin in range(0, len(rows), most):
            part = _stored_tags(rows[begin : begin + most], using)
            vendor(using).insert(connections[using], table, ["job_id", "tag"], part)
    return ids


def _stored_tags(rows: Sequence[tuple[int, str]], using: str) -> list[tuple[Any, ...]]:
    from jobqueue.models import JobTag

    tags = _prepared(JobTag._meta.get_field("tag"), [tag for _, tag in rows], connections[using])
    return list(zip([job_id for job_id, _ in rows], tags, strict=True))


def _in_lanes(work: Callable[[], list[int]], jobs: Sequence[NewJob], using: str, until: float) -> list[int]:
    from jobqueue.ordering import lanes

    keys = [(job.queue, job.ordering_key) for job in jobs if job.ordering_key is not None]
    with bounded_wait(until, using):
        # Before the ids are handed out, and until COMMIT: so the ids have the order of the commits.
        lanes.hold(keys, using)
        ids = work()
        joining = [job_id for job_id, job in zip(ids, jobs, strict=True) if job.ordering_key is not None]
        lanes.join([(lanes.lane_of(*key), job_id) for key, job_id in zip(keys, joining, strict=True)], using)
    return ids


def dated_insertion(job: NewJob, connection: BaseDatabaseWrapper) -> Callable[[], tuple[int, Any]]:
    """A function that inserts `job`, without a key; its id, and what insert_one() gives for its created_at."""
    columns, (row,) = _columns([job], connection)
    return partial(vendor_of(connection).insert_one, connection, _job_table().name, columns, row, "created_at")


def read_created_at(value: Any, connection: BaseDatabaseWrapper) -> datetime:
    """created_at from what the driver gave for it."""
    found: datetime = _job_table().fields["created_at"].from_db_value(value, None, connection)
    return found


class _Table(NamedTuple):
    """The job table and its fields."""

    name: str
    fields: Mapping[str, Any]


@cache
def _job_table() -> _Table:
    from jobqueue.models import Job

    return _Table(Job._meta.db_table, {field.name: field for field in Job._meta.concrete_fields})


def _columns(jobs: Sequence[NewJob], connection: BaseDatabaseWrapper) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns that must be given, and their values for each job."""
    given: dict[str, Sequence[Any]] = {"queue": [job.queue for job in jobs], "payload": [job.payload for job in jobs]}
    if len(jobs) == 1:
        each = zip(OPTIONAL_COLUMNS.items(), _OPTIONAL(jobs[0]), strict=True)
        given |= {name: [value] for (name, default), value in each if value != default}
    else:
        every, count = zip(OPTIONAL_COLUMNS.items(), zip(*map(_OPTIONAL, jobs), strict=True), strict=True), len(jobs)
        given |= {name: own for (name, default), own in every if own.count(default) < count}
    if None in given.get("run_at", ()):
        # A statement leaves the column out for all of its jobs, or for none.
        now = read_now(connection.alias)
        given["run_at"] = [instant or now for instant in given["run_at"]]
    gated = "ordering_key" in given or any(job.waits for job in jobs)
    if gated:
        given["gate"] = [job.gate for job in jobs]
    if gated or "run_at" in given:
        given["wait_reason"] = [job.wait_reason for job in jobs]
    known = _job_table().fields
    values = [_prepared(known[name], own, connection) for name, own in given.items()]
    return [*given], list(zip(*values, strict=True))


def _prepared(field: Any, values: Sequence[Any], connection: BaseDatabaseWrapper) -> list[Any]:
    """The driver's parameters for `values`. Equal ones are prepared once, and most columns have equal ones."""
    if len(values) == 1:
        return [field.get_db_prep_save(values[0], connection)]
    found = {value: field.get_db_prep_save(value, connection) for value in set(values)}
    return [found[value] for value in values]


def chunks(jobs: Sequence[NewJob], using: str) -> Iterator[list[NewJob]]:
    """`jobs` in portions of one statement each."""
    most = vendor(using).insert_rows_max
    return in_chunks(jobs, lambda job: len(job.payload), size_max=_STATEMENT_BYTES, count_max=most)


@contextmanager
def bounded_wait(until: float, using: str) -> Iterator[None]:
    """A transaction, or a savepoint in the caller's, that waits for locks until `until` (monotonic) and no longer.

    A shorter limit of the session applies. Raises DatabaseBusy; the caller's transaction stays usable.
    """
    connection, locks = connections[using], vendor(using).locks
    alone = not in_callers_transaction(connection)
    try:
        with locks.brief_transaction(connection, max(_LEAST_SECONDS, until - time.monotonic())):
            yield
    except OperationalError as error:
        # Outside a transaction retry_transient() repeats it while there is time.
        if connection.needs_rollback or not locks.is_lock_timeout(error) or (alone and time.monotonic() < until):
            raise
        raise DatabaseBusy(
            "another transaction has used the same dedupe key or ordering key and has not come to its commit or "
            "rollback, so this call gave up waiting. Nothing was written. Try again; if it happens often, "
            "enqueue at the end of long transactions, or after their commit, and look for one that was left open."
        ) from error
