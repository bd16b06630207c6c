"""What one pass of a claim asks for, and the leases it makes of the rows it gets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Expression, F

from jobqueue.db.expressions import Slot
from jobqueue.db.fields import NameField, TokenField
from jobqueue.gates.breaker_states import has_dependencies
from jobqueue.gates.rules import NO_RULES, Rules
from jobqueue.gates.waiting import Blocked
from jobqueue.gates.whole_queues import NO_LIMITS, QueueLimits
from jobqueue.models import Job
from jobqueue.payload import JSON
from jobqueue.transitions.claiming import candidates
from jobqueue.transitions.claiming.candidates import Head
from jobqueue.transitions.claiming.cursor import NO_CURSOR, ScanCursor
from jobqueue.transitions.leases import Lease
from jobqueue.validation import SECONDS_MAX

_WORKER = Slot("worker", NameField())


class Row(NamedTuple):
    """A job as a claim reads it: select_then_update before it raises the fence, update_returning after."""

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
    dependency: str | None = None
    concurrency_key: bytes | None = None


#: what a claim reads; the last two only where they are needed, so that others read what they need and no more
_ALL, _WITHOUT_KEY, _WITHOUT_BOTH = Row._fields, Row._fields[:-1], Row._fields[:-2]


def row_columns(*, gated: bool = False) -> tuple[str, ...]:
    """The fields of Row that a claim of this process reads. `gated`: jobs of this claim may have limits."""
    if gated:
        return _ALL
    return _WITHOUT_KEY if has_dependencies() else _WITHOUT_BOTH


def lease_columns(locked_at: Expression, lock_until: Expression) -> dict[str, object]:
    """The columns that a claim writes; `worker` and `token` are slots of the statement."""
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
    """Up to `limit` of the first `look` due jobs of `queue`, for `worker` and for `seconds`."""

    queue: str
    limit: int
    look: int
    worker: str
    seconds: float
    using: str
    head: Head | None = None  # the highest priority that waits, if it is known
    cursor: ScanCursor = NO_CURSOR  # where to begin
    only_level: int | None = None  # the only priority that had due jobs a moment ago: below it nothing is looked for
    follows: bool = False  # begin at the cursor's level: those above held only delayed jobs a moment ago
    from_top: bool = False  # claim from the highest priority first, without a seek for it
    in_one: bool = False  # by one statement that updates and returns
    gated: bool = False  # jobs may have limits, which are checked before they are stamped
    known: Rules = NO_RULES  # read before the transaction, which may have an old snapshot
    limits: QueueLimits = NO_LIMITS  # of the whole queue
    paced_max: int | None = None  # at most so many jobs with a rate, because they must start at once
    excluded: tuple[str, ...] = ()  # tasks that a claim which checks nothing must not take, because they have limits
    aged: bool = False  # jobs that have waited for longer than STARVE_SECONDS come first
    #: expired jobs that each try has ended, with the instant: one may have been committed without an answer
    ended: list[tuple[Row, datetime | None]] = field(default_factory=list)

    def narrowed(self, limit: int) -> Request:
        """The same for at most `limit` jobs."""
        return replace(self, limit=limit, look=limit if self.look == self.limit else self.look)

    def due_levels(self) -> Iterator[int]:
        """The priorities to claim from, highest first."""
        begin = Head(self.queue, self.cursor.level, all_due=True) if self.follows else self.head
        return candidates.due_levels(self.queue, using=self.using, surely=self.cursor.level, head=begin)

    def lease(self, row: Row, token: bytes, lock_until: datetime | None = None, slot: int | None = None) -> Lease:
        """The lease on `row`, which begins at row.now. `lock_until`: the row is leased already, until then."""
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
            row.dependency,
            slot,
        )


class Taken(NamedTuple):
    """The result of one pass."""

    rows: list[Row]  # all rows that were read, in the order they are taken
    leases: list[Lease]
    late: list[Row]  # those that had expired; they are CANCELED
    blocked: Sequence[Blocked] = ()  # those that wait behind gates now
    from_top: bool = False  # taken from the highest priority without a seek, and others were not looked at
    spare: Collection[int] = ()  # subjects of slots that those may have been opened for
    narrowed: Request | None = None  # what the limits of the queue have left of the request
    is_full: bool = False  # as many jobs of the queue run as may
    shut_seconds: float = 0.0  # until the queue has a token again, if it has none
    unwritten: Collection[int] = ()  # gates that are to be looked at soon: close_gates()
    passed: bool = False  # jobs whose tasks may have limits were left alone: the next pass has to check them


NOTHING = Taken([], [], [])
