"""What one claim asks for, and the leases it makes of the rows it gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import F

from jobqueue.db.fields import NameField, TokenField
from jobqueue.db.prepared import Slot
from jobqueue.models import Job
from jobqueue.names import SECONDS_MAX
from jobqueue.payload import JSON
from jobqueue.transitions.floors import NO_FLOOR, Floor
from jobqueue.transitions.leases import Lease

_WORKER = Slot("worker", NameField())


class Row(NamedTuple):
    """A job as a claim reads it, before its fence is raised, or after that with the end of its lease beside it."""

    pk: int
    payload: JSON
    task: str | None
    attempts: int
    max_attempts: int
    fence: int
    due_at: datetime
    made_at: datetime
    valid_until: datetime | None
    options: JSON
    lease_seconds: float | None
    priority: int
    ordering_key: bytes | None
    now: datetime


def taken(locked_at: Any, lock_until: Any) -> dict[str, Any]:
    """The columns of a job that is taken; the statement's runs bring `worker` and `token`."""
    return {
        "status": Job.Status.PROCESSING,
        "locked_by": _WORKER,
        "lock_token": Slot("token", TokenField()),
        "locked_at": locked_at,
        "lock_until": lock_until,
        "last_started_at": locked_at,
        "last_worker": _WORKER,
        "updated_at": locked_at,
        "fence": F("fence") + 1,
        "wait_reason": None,
    }


@dataclass(frozen=True, slots=True)
class Request:
    """Up to `limit` of the first `look` due jobs of `queue`, from `floor` up, for `worker` and for `seconds`."""

    queue: str
    limit: int
    look: int
    worker: str
    seconds: float
    using: str
    floor: Floor = NO_FLOOR
    #: jobs that had expired and each try has ended, with the instant: one may have been committed without an answer
    ended: list[tuple[Row, datetime | None]] = field(default_factory=list)

    def lease(self, row: Row, token: bytes, lock_until: datetime | None = None) -> Lease:
        """The lease on `row`, from its own now for as long as was asked for; `lock_until`: it is leased, until then."""
        # Bounded: plain SQL may have written any number, and one row must not stop the claims of its queue.
        granted = min(max(self.seconds, row.lease_seconds or 0.0), float(SECONDS_MAX))
        # By position, in the order of the fields: names would take as long again.
        return Lease(
            row.pk,
            token,
            row.fence + (lock_until is None),
            row.attempts + 1,
            row.payload,
            lock_until or row.now + timedelta(seconds=granted),
            self.queue,
            row.task,
            row.max_attempts,
            self.worker,
            row.now,
            row.due_at,
            row.made_at,
            granted,
            self.using,
            row.options,
            row.ordering_key,
            row.valid_until,
        )


class Taken(NamedTuple):
    """What became of one claim's request."""

    rows: list[Row]  # all that were met, in the order they are taken
    leases: list[Lease]
    late: list[Row]  # those that had expired; they are CANCELED


NOTHING = Taken([], [], [])
