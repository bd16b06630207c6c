"""Slots: rows that leases have, with numbers below the limit. The primary key refuses one more than there are.

A slot counts only while its job is PROCESSING with the slot's fence. So a lease that ends frees it, however it ends,
and nothing has to be undone after a crash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import NamedTuple

from django.db.models import BigIntegerField, F, QuerySet

from jobqueue.db import vendor
from jobqueue.db.expressions import AnyOf, Keys, Unestimated
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.upsert import upsert
from jobqueue.gates import declared
from jobqueue.models import GateSlot, Job
from jobqueue.models.rows import any_in_state


class Slot(NamedTuple):
    """A row: the slot, and the lease that has it or had it."""

    subject: int
    number: int
    job_id: int
    fence: int


class FreeSlots:
    """The free slots of one subject, whose rows the open transaction has locked."""

    def __init__(self, held: Collection[Slot], valid: Collection[Slot], others: int) -> None:
        self.known = {slot.number for slot in held}
        self._used = {slot.number for slot in held if slot in valid}
        # Leases with numbers above a limit that was lowered count too, until they end; `others` run without a number.
        self._running = len(self._used) + others
        self._next = 0

    def is_full(self, most: int) -> bool:
        """Whether `most` leases have slots. Jobs of tasks with other limits may share a key."""
        return self._running >= most

    def take(self) -> int:
        """The lowest number that is free."""
        while self._next in self._used:
            self._next += 1
        self._used.add(self._next)
        self._running += 1
        return self._next


def lock_slots(subjects: Mapping[int, str | None], queue: str, using: str) -> dict[int, FreeSlots]:
    """Lock the slots of these subjects for the open transaction. The values: the task, if they are those of a task.

    The rows are locked in their order, so that two claims do not wait for each other crosswise. Only once in a
    transaction: the rows of a second time would not come in that order.
    """
    if not subjects:
        return {}
    # Locked before it is read which leases have ended: nobody else can give an ended lease's slot away after that.
    held = _by_subject(map(Slot._make, _lock(using).rows(subjects=sorted(subjects))))
    valid = _valid([slot for slots in held.values() for slot in slots], using)
    tasks = {subject: (queue, task) for subject, task in subjects.items() if task is not None}
    others = _without_slot(tasks, valid, using)
    return {subject: FreeSlots(held[subject], valid, others.get(subject, 0)) for subject in subjects}


def take_slots(slots: Iterable[Slot], free: Mapping[int, FreeSlots], using: str) -> set[int]:
    """Write these slots; the ids of the jobs that got theirs.

    A number that had no row before is not locked: if another claim inserts it just now, it counts as taken.
    """
    over: list[Slot] = []
    fresh: list[Slot] = []
    for slot in sorted(slots):
        (over if slot.number in free[slot.subject].known else fresh).append(slot)
    if over:
        upsert(GateSlot, over, keys=("subject", "number"), changed=("job_id", "fence"), using=using)
    return {slot.job_id for slot in over} | _insert(fresh, using)


def _without_slot(
    tasks: Mapping[int, tuple[str, str | None]], valid: Collection[Slot], using: str
) -> Mapping[int, int]:
    """By subject, how many leases of a task in a queue have no slot: they began before the limit was known.

    Reads the index entries of the jobs that run in each queue.
    """
    slotted = {slot.job_id for slot in valid}
    found: dict[int, int] = {}
    for subject, (queue, task) in tasks.items():
        rows = Job.objects.using(using).filter(queue=Unestimated(queue), status=Unestimated(Job.Status.PROCESSING))
        rows = vendor(using).force_index(rows.filter(task__in=declared.names_of(task or "")), "ix_pick")
        found[subject] = sum(job_id not in slotted for job_id in rows.values_list("pk", flat=True))
    return found


def in_use(subjects: Mapping[int, tuple[str, str | None] | None], using: str) -> Mapping[int, int]:
    """How many slots of each subject leases have. The values: queue and task of slots that are those of a task."""
    held = _by_subject(_read(subjects, using))
    valid = _valid([slot for slots in held.values() for slot in slots], using)
    others = _without_slot({subject: place for subject, place in subjects.items() if place}, valid, using)
    return {subject: sum(slot in valid for slot in held[subject]) + others.get(subject, 0) for subject in subjects}


def holders(subject: int, using: str) -> list[int]:
    """The ids of the jobs whose leases have the slots of a subject, in the order of the slots. Two statements."""
    held = _read([subject], using)
    valid = _valid(held, using)
    return [slot.job_id for slot in held if slot in valid]


def _read(subjects: Iterable[int], using: str) -> list[Slot]:
    """The slots of these subjects that have rows, in their order."""
    wanted = sorted(subjects)
    return [Slot._make(row) for row in _find(using).rows(subjects=wanted)] if wanted else []


def _by_subject(slots: Iterable[Slot]) -> dict[int, list[Slot]]:
    found: dict[int, list[Slot]] = defaultdict(list)
    for slot in slots:
        found[slot.subject].append(slot)
    return found


def _valid(slots: Collection[Slot], using: str) -> set[Slot]:
    """Those of `slots` whose leases have not ended."""
    if not slots:
        return set()
    fences = dict(_running(using).rows(ids={slot.job_id for slot in slots}))
    return {slot for slot in slots if fences.get(slot.job_id) == slot.fence}


def _slots(using: str) -> QuerySet[GateSlot]:
    rows = GateSlot.objects.using(using).filter(AnyOf(F("subject"), Keys("subjects", BigIntegerField())))
    return rows.order_by("subject", "number")


@cache
def _find(using: str) -> Prepared:
    return prepare_rows(_slots(using).values_list(*Slot._fields))


@cache
def _lock(using: str) -> Prepared:
    return prepare_rows(_slots(using).select_for_update().values_list(*Slot._fields))


@cache
def _running(using: str) -> Prepared:
    return prepare_rows(any_in_state(Job.Status.PROCESSING, using=using).values_list("pk", "fence"))


def _insert(fresh: list[Slot], using: str) -> set[int]:
    """Insert these slots, but those whose numbers others have taken meanwhile; the ids of the jobs that got theirs."""
    if not fresh:
        return set()
    rows = GateSlot.objects.using(using)
    rows.bulk_create((GateSlot(**slot._asdict()) for slot in fresh), ignore_conflicts=True)
    mine = set(fresh)
    return {slot.job_id for slot in _read({slot.subject for slot in fresh}, using) if slot in mine}
