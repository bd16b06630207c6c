"""The INSERT statements of the job table, written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.clock import read_now
from jobqueue.db.expressions import Slot
from jobqueue.db.fields import Encoded
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.ordering.gate import KEY_GATE, SCHEDULED, WAITS

# One statement stays far below the smallest default max_allowed_packet (MariaDB, 16 MB).
_STATEMENT_BYTES = 4_000_000
# Left out of the INSERT where all jobs have what the database fills in by itself; each value costs time per row.
_DEFAULTS = {
    "priority": 0,
    "max_attempts": 25,
    "task": None,
    "dedupe_key": None,
    "lease_seconds": None,
    "run_at": None,
    "expires_at": None,
    "options": None,
    "ordering_key": None,
}


@dataclass(frozen=True, slots=True)
class NewJob:
    """One job to insert, checked and encoded."""

    queue: str
    payload: Encoded
    priority: int = 0
    run_at: datetime | None = None
    max_attempts: int = 25
    task: str | None = None
    dedupe_key: bytes | None = None
    lease_seconds: float | None = None
    expires_at: datetime | None = None
    options: Encoded | None = None
    ordering_key: bytes | None = None

    @property
    def gate(self) -> int:
        """Closed where others of the job's key may be before it."""
        return 0 if self.ordering_key is None else KEY_GATE

    @property
    def wait_reason(self) -> str | None:
        """Why it waits, if it does."""
        if self.ordering_key is not None:
            return WAITS
        # Also of one that has passed: only the database's clock could tell, and the claim that takes it removes this.
        return None if self.run_at is None else SCHEDULED


def insert(jobs: Sequence[NewJob], using: str) -> list[int]:
    """INSERT ... VALUES by hand: Django's bulk_create gives no ids on MySQL and costs several times as much."""
    from jobqueue.models import Job

    return vendor(using).insert(connections[using], Job._meta.db_table, *_columns(jobs, using))


def insert_one(job: NewJob, using: str) -> tuple[int, datetime | None]:
    """The id, and created_at where the INSERT can tell it."""
    from jobqueue.models import Job

    connection, (columns, (row,)) = connections[using], _columns([job], using)
    job_id, created_at = vendor(using).insert_one(connection, Job._meta.db_table, columns, row, "created_at")
    field: Any = Job._meta.get_field("created_at")
    return job_id, None if created_at is None else field.from_db_value(created_at, None, connection)


def created_at(job_id: int, using: str) -> datetime:
    """When a job that was inserted just now was created, by the database's clock."""
    found = _created_at(using).rows(job_id=job_id)
    # Somebody may have taken the job and deleted its row already.
    return found[0][0] if found else read_now(using)


@cache
def _created_at(using: str) -> Prepared:
    from jobqueue.models import Job

    rows = Job.objects.using(using).filter(pk=Slot("job_id", Job._meta.pk))
    return prepare_rows(rows.values_list("created_at"))


def _columns(jobs: Sequence[NewJob], using: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns that must be given, and their values for each job."""
    from jobqueue.models import Job

    given = [name for name, default in _DEFAULTS.items() if any(getattr(job, name) != default for job in jobs)]
    given += ["gate"] * ("ordering_key" in given)
    given += ["wait_reason"] * ("ordering_key" in given or "run_at" in given)
    columns = ["queue", "payload", *given]
    values = [_prepared(Job._meta.get_field(name), [getattr(job, name) for job in jobs], using) for name in columns]
    return columns, list(zip(*values, strict=True))


def _prepared(field: Any, values: Sequence[Any], using: str) -> list[Any]:
    """What the driver takes for `values`; equal ones, which most columns have, are prepared once."""
    found = {value: field.get_db_prep_save(value, connections[using]) for value in set(values)}
    return [found[value] for value in values]


def chunks(jobs: Sequence[NewJob], using: str) -> Iterator[list[NewJob]]:
    """`jobs` in portions of one statement each."""
    most = vendor(using).insert_rows_max
    chunk: list[NewJob] = []
    size = 0
    for job in jobs:
        if chunk and (len(chunk) >= most or size + len(job.payload) > _STATEMENT_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(job)
        size += len(job.payload)
    if chunk:
        yield chunk
