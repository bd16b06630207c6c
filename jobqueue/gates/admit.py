"""room_in(): how many jobs of a queue a claim may start; admit(): which of those that it has locked.

No limit can be passed, whatever else goes wrong. Both lock what they count until the claim's transaction ends, and take
what others keep locked for used up: no claim waits for another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from jobqueue.conf.known_tasks import path_of
from jobqueue.gates.buckets import Bucket, lock_buckets, mend
from jobqueue.gates.kinds import Asking, Candidate, stop_of
from jobqueue.gates.limits import Limits, Rate, Slots, Subject, limits_of, whole_queue_subject
from jobqueue.gates.locking import lock_gates, make_gate
from jobqueue.gates.rules import Rules
from jobqueue.gates.slots import Slot, lock_slots, running, take_slots
from jobqueue.gates.waiting import Blocked

#: so long after a job was stopped by a kind of limit, it is looked whether that still holds
LOOK_SECONDS = 1.0
#: so long a claimer leaves a queue alone whose gate another claim keeps locked
BUSY_SECONDS = 0.05


@dataclass(slots=True)
class Room:
    """How many jobs of a queue a claim may start, in its open transaction."""

    jobs: int
    seconds: float = 0.0  # until more may start, if that is known
    is_full: bool = False  # as many run as may
    no_gate: bool = False  # another transaction has it locked, or it is not there
    _bucket: Bucket | None = None

    def use(self, jobs: int, using: str) -> None:
        """Record that so many of them start."""
        if jobs and self._bucket is not None:
            self._bucket.write(jobs, using, waits=False)


def room_in(queue: str, wanted: int, limits: Limits, using: str, *, paced_max: int | None = None) -> Room:
    """The room for up to `wanted` jobs of `queue`. The open transaction keeps the queue's gate locked.

    So of two claims one counts the jobs that the other has leased. `paced_max`: the room if the queue has a rate. The
    room is 0 while another transaction keeps the gate locked, and until make_room() has made it.
    """
    number, wait_reason = whole_queue_subject(queue)
    gate = lock_gates({number: wait_reason}, using, make=False).get(number)
    if gate is None:
        return Room(0, seconds=BUSY_SECONDS, no_gate=True)
    left = wanted if limits.most is None else limits.most - running(queue, limits.most, using)
    room = Room(max(0, min(wanted, left)), is_full=left <= 0)
    if limits.per_second and paced_max is not None:
        room.jobs = min(room.jobs, paced_max)
    if limits.per_second and room.jobs:
        mend(gate, limits.per_second, using)
        bucket = Bucket(gate, limits.per_second)
        room = replace(room, jobs=min(room.jobs, bucket.left), seconds=bucket.seconds_to_next, _bucket=bucket)
    return room


def make_room(queue: str, using: str) -> None:
    """Make the gate of `queue` if it is not there, before the transaction of a claim."""
    make_gate(*whole_queue_subject(queue), using)


class _Limited(NamedTuple):
    """A job and its limits."""

    row: Candidate
    slots: Slots | None
    rate: Rate | None


@dataclass(slots=True)
class Admitted:
    """The answer about some jobs. Those that are in neither were not needed."""

    free: set[int] = field(default_factory=set)  # ids of those that may start
    slots: dict[int, int] = field(default_factory=dict)  # the subject of the slot that a job has taken, by its id
    blocked: list[Blocked] = field(default_factory=list)
    #: subjects of slots that jobs blocked by something else do not use: they may have been opened for them
    unused_slots: set[int] = field(default_factory=set)


def admit(
    rows: Sequence[Candidate], limit: int, *, queue: str, known: Rules, paced_max: int | None, using: str
) -> Admitted:
    """Up to `limit` of `rows` may start, in their order; with slots and tokens taken in the open transaction.

    Fewer if another claim takes one of their slots just now. Those of `rows` for which there is no slot or no token are
    blocked.
    `paced_max`: at most so many with a rate, because they must start at once (None: any number).
    """
    answer = Admitted()
    found = _candidates(rows, limit, Asking(queue, known, using), answer)
    # Of all rows, once: also of those that come in only if others have no slot.
    places = {one.slots.subject.number: one.slots.place for one in found if one.slots is not None}
    free, buckets = lock_slots(places, using), _buckets(found, using)
    # A bucket that another transaction keeps locked has no tokens.
    left = {number: bucket.left for number, bucket in buckets.items()}
    chosen: list[_Limited] = []
    slots: list[Slot] = []
    paced = 0
    for one in found:
        if one.slots is not None and free[one.slots.subject.number].is_full(one.slots.most):
            _block(one.row, one.slots.subject, answer, most=one.slots.most)
        elif one.rate is not None and not left.get(one.rate.subject.number):
            _block(one.row, one.rate.subject, answer)
            _leave_slot(one, answer)
        elif len(chosen) < limit and (one.rate is None or paced_max is None or paced < paced_max):
            chosen.append(one)
            if one.rate is not None:
                paced += 1
                left[one.rate.subject.number] -= 1
            if one.slots is not None:
                number = free[one.slots.subject.number].take()
                slots.append(Slot(one.slots.subject.number, number, one.row.pk, one.row.fence + 1))
    _start(chosen, take_slots(slots, free, using), buckets, answer, using)
    return answer


def _buckets(found: Iterable[_Limited], using: str) -> dict[int, Bucket]:
    wanted: dict[int, tuple[float, str]] = {}
    for one in found:
        if one.rate is not None:
            number, rate = one.rate.subject.number, one.rate.per_second
            # Tasks with other rates may share a key: the slowest counts for all.
            wanted[number] = min(rate, wanted[number][0] if number in wanted else rate), one.rate.subject.wait_reason
    return lock_buckets(wanted, using)


def _start(
    chosen: Iterable[_Limited],
    placed: Collection[int],
    buckets: Mapping[int, Bucket],
    answer: Admitted,
    using: str,
) -> None:
    """Those that got their slots start, and use their tokens."""
    tokens: Counter[int] = Counter()
    for one in chosen:
        if one.slots is not None and one.row.pk not in placed:
            _block(one.row, one.slots.subject, answer, most=one.slots.most)
            continue
        answer.free.add(one.row.pk)
        if one.slots is not None:
            answer.slots[one.row.pk] = one.slots.subject.number
        if one.rate is not None:
            tokens[one.rate.subject.number] += 1
    waited = {one.subject.number for one in answer.blocked}
    for number, bucket in buckets.items():
        if tokens[number] or number in waited:
            bucket.write(tokens[number], using, waits=number in waited)


def _candidates(rows: Sequence[Candidate], limit: int, asking: Asking, answer: Admitted) -> list[_Limited]:
    """Those that no kind of limit stops; the others are blocked."""
    found: list[_Limited] = []
    for row in rows:
        asking.may_ask = len(found) < limit
        limited = _Limited(row, *limits_of(asking.queue, row.task, row.concurrency_key, asking.known))
        if (stop := stop_of(row, asking)) is None:
            found.append(limited)
        elif stop.subject is not None:
            at = _look_at(row, stop.until)
            answer.blocked.append(Blocked(row.pk, row.priority, row.due_at, stop.subject, stop.task, None, at))
            _leave_slot(limited, answer)
    return found


def _leave_slot(one: _Limited, answer: Admitted) -> None:
    if one.slots is not None:
        answer.unused_slots.add(one.slots.subject.number)


def _look_at(row: Candidate, opens_at: datetime | None) -> datetime:
    """When to look whether the gate may be opened: soon, because what this process knows is a moment old."""
    soon = row.now + timedelta(seconds=LOOK_SECONDS)
    return soon if opens_at is None else min(soon, opens_at)


def _block(row: Candidate, subject: Subject, answer: Admitted, *, most: int | None = None) -> None:
    task = None if row.task is None else path_of(row.task)
    answer.blocked.append(Blocked(row.pk, row.priority, row.due_at, subject, task, most))
