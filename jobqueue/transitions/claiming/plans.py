"""The plans of a pass of a claim, the leases that it makes of the rows it gets, and what it does with expired ones."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, Self

from django.db import Error
from django.db.models import Expression, F

from jobqueue.base.payload import JSON
from jobqueue.base.validation import SECONDS_MAX
from jobqueue.db.expressions import Slot
from jobqueue.db.fields import NameField, TokenField
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, JobExpired
from jobqueue.failures import FailureCause, describe
from jobqueue.gates.limits import NO_LIMITS, Limits
from jobqueue.gates.rules import NO_RULES, Rules, has_dependencies
from jobqueue.gates.waiting import Blocked
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.models.rows import in_state
from jobqueue.transitions.claiming.queue_memory import FROM_HEAD, Beginning
from jobqueue.transitions.leases import Lease, canceled

logger = logging.getLogger("jobqueue.transitions")

EXPIRED_BATCH = 500  # where one has expired there are often many
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
class ClaimPlan:
    """One pass of a claim: lease up to `limit` of the first `look` due jobs of `queue` to `worker` for `seconds`.

    A pass is one of the three plans below. They differ in the statements that they send and in what they check.
    """

    queue: str
    limit: int
    look: int
    worker: str
    seconds: float
    using: str
    begin: Beginning = FROM_HEAD
    passed_over: tuple[str, ...] = ()  # tasks that may have limits: their jobs are left for a pass that checks them

    def levels(self) -> Iterator[int]:
        """The priorities to claim from, highest first."""
        return self.begin.levels(self.queue, self.using)

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


@dataclass(frozen=True, slots=True)
class OneStatement(ClaimPlan):
    """Update and return: each statement locks, leases and returns jobs of one priority, and commits.

    For a queue without a limit of its own, on a database that has UPDATE ... RETURNING; `look` is `limit`.
    """

    unseen_top: bool = False  # first from the highest priority that waits, whichever that is, without a seek for it


@dataclass(frozen=True, slots=True)
class LockAndStamp(ClaimPlan):
    """Lock the rows, then lease those that may start, in one transaction. Here the queue may have limits."""

    limits: Limits = NO_LIMITS  # of the whole queue
    paced_max: int | None = None  # at most so many jobs with a rate, because they must start at once
    aged: bool = False  # jobs that have waited for longer than STARVE_SECONDS come first
    #: expired jobs that each try has ended, with the instant: one may have been committed without an answer
    ended: list[tuple[Row, datetime | None]] = field(default_factory=list)

    def narrowed(self, limit: int) -> Self:
        """The same for at most `limit` jobs."""
        return replace(self, limit=limit, look=limit if self.look == self.limit else self.look)


@dataclass(frozen=True, slots=True)
class CheckEachJob(LockAndStamp):
    """Lock and stamp, and between the two put jobs whose limits are used up behind their gates.

    It begins at the head: jobs that were opened have an older run_at, perhaps another priority, and are found at once.
    """

    known: Rules = NO_RULES  # read before the transaction, which may have an old snapshot


class Taken(NamedTuple):
    """The result of one pass."""

    rows: list[Row]  # all rows that were read, in the order they are taken
    leases: list[Lease]
    late: list[Row]  # those that had expired; they are CANCELED
    blocked: Sequence[Blocked] = ()  # those that wait behind gates now
    from_top: bool = False  # taken from the unseen top, and no other priority was looked at
    unused_slots: Collection[int] = ()  # subjects of slots that those may have been opened for: Admitted.unused_slots
    narrowed: LockAndStamp | None = None  # what the limits of the queue have left of the plan
    is_full: bool = False  # as many jobs of the queue run as may
    shut_seconds: float = 0.0  # until the queue has a token again, if it has none
    no_gate: bool = False  # the gate of the queue was locked, or the sweep has deleted it
    unwritten: Collection[int] = ()  # gates that are to be looked at soon: close_gates()
    passed: bool = False  # jobs whose tasks may have limits were left alone: the next pass has to check them


NOTHING = Taken([], [], [])


def expired(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """`rows` split into those that may run and those that have expired."""
    late = [row for row in rows if row.valid_until is not None and row.valid_until <= row.now]
    return ([row for row in rows if row not in late] if late else list(rows)), late


def end_expired(rows: JobQuerySet) -> None:
    """End `rows` CANCELED, cause EXPIRED."""
    error = JobExpired("its expires_at came before this attempt began; retry runs it all the same")
    rows.update(**canceled(), cause=FailureCause.EXPIRED.value, fingerprint=None, last_error=describe(error))


def ended_now(rows: Sequence[Row], *, using: str) -> list[tuple[Row, datetime | None]]:
    """`rows`, which this transaction has ended, each with its finished_at, which identifies this end of the job."""
    ids = [row.pk for row in rows]
    instants = dict(Job.objects.using(using).filter(pk__in=ids).values_list("pk", "finished_at"))
    return [(row, instants.get(row.pk)) for row in rows]


def ended_before(ended: Sequence[tuple[Row, datetime | None]], late: Sequence[Row], *, using: str) -> list[Row]:
    """The rows that earlier tries of a pass have ended and committed; `late` are those of its last try."""
    known = {row.pk for row in late}
    earlier = [(row, instant) for row, instant in ended if row.pk not in known]
    if not earlier:
        return []
    rows = Job.objects.using(using).filter(pk__in=[row.pk for row, _ in earlier], status=Job.Status.CANCELED)
    instants: dict[int, datetime | None]
    try:
        instants = retry_transient("claim", partial(dict, rows.values_list("pk", "finished_at")), using=using)
    except (Error, DatabaseBusy) as error:
        # The jobs that were claimed must run in any case.
        logger.warning("no signal is sent for expired jobs that a lost commit may have ended: %s", error)
        return []
    return [row for row, instant in earlier if instant is not None and instants.get(row.pk) == instant]


def with_waiting_keys(leases: Sequence[Lease]) -> list[Lease]:
    """Those of `leases` whose jobs have such a key. Their options say so, which every claim reads."""
    return [lease for lease in leases if isinstance(lease.options, dict) and lease.options.get("unique") == "waiting"]


def free_keys(leases: Sequence[Lease]) -> None:
    """Free the keys of claimed jobs that share a token. Where it fails, the next enqueue of the key takes it."""
    # A statement of its own, so that claims of other jobs stay as they are.
    if leases:
        rows = in_state((lease.job_id for lease in leases), Job.Status.PROCESSING, using=leases[0].using)
        rows.filter(lock_token=leases[0].token, dedupe_key__isnull=False).update(dedupe_key=None)
