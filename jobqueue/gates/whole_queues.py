"""The limits of a whole queue: its pause, how many of its jobs run at once in all workers, and how fast they start.

No job waits at a gate for them: a claim is told how many jobs it may take. So a pause of a million jobs is one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.db.expressions import Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.durations import parse_rate
from jobqueue.gates.buckets import draw, mend
from jobqueue.gates.rules import Rules
from jobqueue.gates.subjects import whole_queue_subject
from jobqueue.gates.unlocked import GateMissing, lock_gate, make_gate, time_of
from jobqueue.models import Gate, Job

#: a limit above this is not counted: no number of workers reaches it
COUNTED_MAX = 100_000
#: so long a claimer leaves a queue alone whose gate another claim keeps locked
BUSY_SECONDS = 0.05


class QueueLimits(NamedTuple):
    """What holds for a whole queue; None: no limit."""

    paused: bool
    most: int | None
    per_second: float | None

    @property
    def none(self) -> bool:
        """Whether claims need not ask."""
        return self.most is None and self.per_second is None


NO_LIMITS = QueueLimits(False, None, None)


def limits_of_queue(queue: str, rules: Rules) -> QueueLimits:
    """What an operator has set for `queue`, else what QUEUES in the settings says."""
    rule, own = rules.queues.get(queue), load().queues.get(queue)
    if rule is None and own is None:
        return NO_LIMITS
    most, per_second = own.concurrency if own else None, parse_rate(own.rate) if own and own.rate else None
    if isinstance(most, (tuple, list)):
        low, high = most
        most = min(high, max(low, rule.level or low)) if rule else low
    if rule is None:
        return QueueLimits(most == 0, most, per_second)
    most = rule.concurrency if rule.sets_concurrency else most
    per_second = rule.per_second if rule.sets_rate else per_second
    return QueueLimits(rule.paused or most == 0 or per_second == 0, most, per_second)


def limited_queues(rules: Rules) -> list[str]:
    """The queues that have a limit of their own, and are not paused."""
    limits = {queue: limits_of_queue(queue, rules) for queue in {*rules.queues, *load().queues}}
    return [queue for queue, own in limits.items() if not own.none and not own.paused]


def due_in(queue: str, using: str) -> bool:
    """Whether a job of `queue` is due that waits for nothing but its queue."""
    due = Job.objects.using(using).filter(queue=queue, status=Job.Status.READY, gate=0, run_at__lte=UtcNow())
    return retry_transient("claim", lambda: bool(due.values_list("pk")[:1]), using=using)


@dataclass(slots=True)
class Room:
    """How many jobs of a queue a claim may start, in its open transaction."""

    jobs: int
    seconds: float = 0.0  # until more may start, if that is known
    is_full: bool = False  # as many run as may
    _gate: Any = None
    _per_second: float | None = None

    def use(self, jobs: int, using: str) -> None:
        """Record that so many of them start."""
        if jobs and self._per_second:
            used_until, _ = draw(self._gate.used_until, time_of(self._gate, using), self._per_second, jobs)
            rows = Gate.objects.using(using).filter(pk=self._gate.pk)
            rows.update(used_until=used_until, per_second=self._per_second, updated_at=UtcNow())


def room_in(queue: str, wanted: int, limits: QueueLimits, using: str, *, paced_max: int | None = None) -> Room:
    """The room for up to `wanted` jobs of `queue`. The open transaction keeps the queue's gate locked.

    So of two claims one counts the jobs that the other has leased. `paced_max`: the room if the queue has a rate. There
    is none while another transaction keeps the gate locked. Raises GateMissing: make_room() is due.
    """
    try:
        gate = lock_gate(whole_queue_subject(queue).number, using)
    except GateMissing:
        raise GateMissing(queue) from None
    if gate is None:
        return Room(0, seconds=BUSY_SECONDS)
    room = Room(wanted, _gate=gate, _per_second=limits.per_second)
    if limits.per_second and paced_max is not None:
        room.jobs = min(room.jobs, paced_max)
    if limits.most is not None:
        left = limits.most - running(queue, limits.most, using)
        room.jobs, room.is_full = min(room.jobs, left), left <= 0
    if limits.per_second and room.jobs > 0:
        mend(gate, limits.per_second, using)
        _, drawn = draw(gate.used_until, gate.now, limits.per_second, room.jobs)
        room.jobs = drawn.tokens
        room.seconds = _until(drawn.opens_at, gate.now)
    room.jobs = max(0, room.jobs)
    return room


def make_room(queue: str, using: str) -> None:
    """Make the gate of `queue`, outside a transaction."""
    subject = whole_queue_subject(queue)
    retry_transient("claim", partial(make_gate, subject.number, subject.wait_reason, using), using=using)


def running(queue: str, most: int, using: str) -> int:
    """How many jobs of `queue` are PROCESSING, counted up to `most`: index entries, without a lock."""
    return len(_running(using, min(most, COUNTED_MAX)).rows(queue=queue))


def running_ids(queue: str, most: int, using: str) -> list[int]:
    """The ids of up to `most` of them, in the order of ix_pick."""
    return [job_id for (job_id,) in _running(using, min(most, COUNTED_MAX)).rows(queue=queue)]


@cache
def _running(using: str, most: int) -> Prepared:
    rows = Job.objects.using(using).filter(
        queue=UnestimatedSlot("queue", NameField()), status=Unestimated(Job.Status.PROCESSING)
    )
    # In the order of the index: PostgreSQL could take a walk through the table for cheaper.
    ordered = vendor(using).force_index(rows, "ix_pick").order_by("gate", "priority", "run_at", "id")
    return prepare_rows(ordered.values_list("pk")[:most])


def _until(opens_at: datetime | None, now: datetime) -> float:
    return 0.0 if opens_at is None else (opens_at - now).total_seconds()
