"""admit(): which of the jobs that a claim has locked may start. No limit can be passed, whatever else goes wrong."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from jobqueue.gates import declared
from jobqueue.gates.breaker import may_probe
from jobqueue.gates.breaker_states import Known
from jobqueue.gates.buckets import take_tokens
from jobqueue.gates.limits import Rate, Slots, limits_of
from jobqueue.gates.rules import Rules
from jobqueue.gates.slots import Wanted, take_slots
from jobqueue.gates.subjects import Subject, breaker_subject, pause_subject
from jobqueue.gates.waiting import Blocked
from jobqueue.payload import JSON

#: so long after a gate was closed for a pause or a breaker, it is looked whether that still holds
LOOK_SECONDS = 1.0


class Candidate(Protocol):
    """A job as a claim has read it, before it raises the fence."""

    @property
    def pk(self) -> int: ...
    @property
    def task(self) -> str | None: ...
    @property
    def fence(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def due_at(self) -> datetime: ...
    @property
    def concurrency_key(self) -> bytes | None: ...
    @property
    def dependency(self) -> str | None: ...
    @property
    def options(self) -> JSON: ...
    @property
    def now(self) -> datetime: ...


class _Limited(NamedTuple):
    """A job and its limits."""

    row: Candidate
    slots: Slots | None
    rate: Rate | None


class _Full(NamedTuple):
    """A subject that has nothing for another job; one of slots, for a job whose limit is at most `most`."""

    subject: Subject
    most: int


@dataclass(slots=True)
class Admitted:
    """The answer about some jobs. Those that are in neither were not needed."""

    free: set[int] = field(default_factory=set)  # ids of those that may start
    slots: dict[int, int] = field(default_factory=dict)  # the subject of the slot that a job has taken, by its id
    blocked: list[Blocked] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)  # dependencies whose breaker was asked for a probe
    paced: int = 0  # how many of `free` have a rate
    #: subjects of slots for which blocked jobs may have been opened: another job can have them
    spare: set[int] = field(default_factory=set)


def admit(
    rows: Sequence[Candidate], limit: int, *, queue: str, known: Rules, paced_max: int | None, using: str
) -> Admitted:
    """Up to `limit` of `rows` may start, in their order; with slots and tokens taken in the open transaction.

    Fewer if some of the first ones turn out to have none. Those that were passed over to come so far are blocked, and
    those behind them that wait for the same subjects.
    `paced_max`: at most so many with a rate, because they must start at once (None: any number).
    """
    answer = Admitted()
    rest = deque(rows)
    full: dict[int, _Full] = {}
    # Once per transaction, so that all claims lock the rows of slots and buckets in the same order: those of a second
    # time would come after those of the first. The next claim asks for more.
    _take(_turn(rest, limit, queue, known, full, answer, paced_max, using), queue, full, answer, using)
    for row in rest:
        # Only those whose subjects are known to be full: others may start with the next claim.
        found = _limited(row, queue, known)
        subject = _first_full(found, full)
        if subject is not None:
            answer.blocked.append(_blocked(row, subject))
    return answer


def _is_shut(row: Candidate, queue: str, known: Rules, answer: Admitted, using: str) -> bool:
    """Whether its task is paused, or the breaker of its dependency is not closed; then it is blocked."""
    rule = known.of_task(queue, row.task)
    if rule.starts_nothing and row.task is not None:
        subject, at = pause_subject(queue, row.task), _look_at(row, rule.until)
    else:
        dependency = declared.needed_by(row)
        breaker = known.breakers.get(dependency) if dependency is not None else None
        if breaker is None or dependency is None or _is_probe(row, dependency, breaker, answer, using):
            return False
        subject, at = breaker_subject(dependency), _look_at(row, breaker.looks_again_at)
    answer.blocked.append(_blocked(row, subject, opens_at=at))
    _spare(_limited(row, queue, known), answer)
    return True


def _spare(one: _Limited, answer: Admitted) -> None:
    if one.slots is not None:
        answer.spare.add(one.slots.subject.number)


def _is_probe(row: Candidate, dependency: str, breaker: Known, answer: Admitted, using: str) -> bool:
    """Whether it starts as the probe of an open breaker. Only one job of a claim asks."""
    if breaker.by_hand or dependency in answer.asked or (breaker.probe_at is not None and breaker.probe_at > row.now):
        return False
    answer.asked.add(dependency)
    return may_probe(dependency, row.pk, row.fence + 1, using=using)


def _look_at(row: Candidate, opens_at: datetime | None) -> datetime:
    """When to look whether the gate may be opened: soon, because what this process knows is a moment old."""
    soon = row.now + timedelta(seconds=LOOK_SECONDS)
    return soon if opens_at is None else min(soon, opens_at)


def _turn(
    rest: deque[Candidate],
    limit: int,
    queue: str,
    known: Rules,
    full: dict[int, _Full],
    answer: Admitted,
    paced_max: int | None,
    using: str,
) -> list[_Limited]:
    """Take `limit` rows from `rest` that may start for all that is known; those of them that have limits.

    Those without limits are free.
    """
    left: list[_Limited] = []
    asked: Counter[int] = Counter()
    paced = 0
    while rest and len(left) + len(answer.free) < limit:
        row = rest.popleft()
        if _is_shut(row, queue, known, answer, using):
            continue
        found = _limited(row, queue, known)
        if (subject := _first_full(found, full)) is not None:
            answer.blocked.append(_blocked(row, subject))
        elif found.slots is None and found.rate is None:
            answer.free.add(row.pk)
        elif found.slots is not None and asked[found.slots.subject.number] >= found.slots.most:
            # More than there are at all: nobody need look which are free.
            _block(found, found.slots.subject, full, answer)
        elif found.rate is None or paced_max is None or paced < paced_max:
            left.append(found)
            paced += found.rate is not None
            if found.slots is not None:
                asked[found.slots.subject.number] += 1
    return left


def _take(limited: Collection[_Limited], queue: str, full: dict[int, _Full], answer: Admitted, using: str) -> None:
    """Take slots and then tokens, so that no token is lost to a job that has no slot."""
    wanted = [
        Wanted(
            one.slots.subject.number,
            one.slots.most,
            one.row.pk,
            one.row.fence + 1,
            one.row.task if one.row.concurrency_key is None else None,
        )
        for one in limited
        if one.slots
    ]
    placed = take_slots(wanted, queue, using) if wanted else set()
    paced: dict[int, list[_Limited]] = defaultdict(list)
    for one in limited:
        if one.slots is not None and one.row.pk not in placed:
            _block(one, one.slots.subject, full, answer)
        elif one.rate is not None:
            paced[one.rate.subject.number].append(one)
        else:
            _start(one, answer)
    if not paced:
        return
    asked: dict[int, tuple[float, int, str]] = {}
    for number, group in paced.items():
        rates = [one.rate for one in group if one.rate is not None]
        # Tasks with other rates may share a key: the slowest counts for all.
        slowest = min(rates, key=lambda rate: rate.per_second)
        asked[number] = slowest.per_second, len(group), slowest.subject.wait_reason
    for number, drawn in take_tokens(asked, using).items():
        for one in paced[number][: drawn.tokens]:
            _start(one, answer)
        for one in paced[number][drawn.tokens :]:
            assert one.rate is not None
            # Its slot, if it took one, is free again as soon as this is committed: its lease does not begin.
            _block(one, one.rate.subject, full, answer)
            _spare(one, answer)


def _start(one: _Limited, answer: Admitted) -> None:
    answer.free.add(one.row.pk)
    answer.paced += one.rate is not None
    if one.slots is not None:
        answer.slots[one.row.pk] = one.slots.subject.number


def _block(one: _Limited, subject: Subject, full: dict[int, _Full], answer: Admitted) -> None:
    most = one.slots.most if one.slots and one.slots.subject == subject else None
    known = full.get(subject.number)
    full[subject.number] = _Full(subject, max(most or 0, known.most if known is not None else 0))
    answer.blocked.append(_blocked(one.row, subject, most))


def _limited(row: Candidate, queue: str, known: Rules) -> _Limited:
    return _Limited(row, *limits_of(queue, row.task, row.concurrency_key, known))


def _first_full(one: _Limited, full: Mapping[int, _Full]) -> Subject | None:
    if one.slots is not None and (found := full.get(one.slots.subject.number)) and one.slots.most <= found.most:
        return one.slots.subject
    return one.rate.subject if one.rate is not None and one.rate.subject.number in full else None


def _blocked(row: Candidate, subject: Subject, most: int | None = None, opens_at: datetime | None = None) -> Blocked:
    task = None if row.task is None else declared.path_of(row.task)
    return Blocked(row.pk, row.priority, row.due_at, subject, task, most, opens_at)
