"""Slots: rows that leases have, with numbers below the limit. The primary key refuses one more than there are.

A slot counts only while its job is PROCESSING with the slot's fence. So a lease that ends frees it, however it ends,
and nothing has to be undone after a crash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from itertools import count
from typing import NamedTuple

from django.db.models import BigIntegerField, F, QuerySet

from jobqueue.db import vendor
from jobqueue.db.expressions import AnyOf, Keys, Unestimated
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.upsert import upsert_integers
from jobqueue.gates import declared
from jobqueue.models import GateSlot, Job
from jobqueue.models.rows import any_in_state


class Wanted(NamedTuple):
    """A slot that a lease needs: of `subject`, while fewer than `most` are in use.

    `task`: the slots are those of a whole task, not of a key. Jobs of tasks with other limits may share a key.
    """

    subject: int
    most: int
    job_id: int
    fence: int
    task: str | None = None


class _Held(NamedTuple):
    """A row: the slot, and the lease that has it or had it."""

    subject: int
    number: int
    job_id: int
    fence: int


def take_slots(wanted: Iterable[Wanted], queue: str, using: str) -> set[int]:
    """Take a slot for each of `wanted`, in the open transaction; the ids of the jobs that got one, first come first.

    The rows of the subjects are locked in their order, so that two claims do not wait for each other crosswise. A slot
    that another claim inserts just now counts as taken. Only once in a transaction: the rows of a second time would not
    come in that order.
    """
    groups: dict[int, list[Wanted]] = defaultdict(list)
    for one in wanted:
        groups[one.subject].append(one)
    # Locked before it is read which leases have ended: nobody else can give an ended lease's slot away after that.
    held = _by_subject(map(_Held._make, _lock(using).rows(subjects=sorted(groups))))
    found = [slot for slots in held.values() for slot in slots]
    valid = _valid(found, using)
    tasks = {subject: (queue, group[0].task) for subject, group in groups.items() if group[0].task is not None}
    others = _without_slot(tasks, valid, using)
    over: list[_Held] = []
    fresh: list[_Held] = []
    for subject in sorted(groups):
        known = {slot.number for slot in held[subject]}
        used = {slot.number for slot in held[subject] if slot in valid}
        for one, number in _numbered(groups[subject], used, others.get(subject, 0)):
            (over if number in known else fresh).append(_Held(subject, number, one.job_id, one.fence))
    if over:
        upsert_integers(GateSlot, over, keys=("subject", "number"), changed=("job_id", "fence"), using=using)
    return {row.job_id for row in over} | _insert(fresh, using)


def _numbered(wanted: Iterable[Wanted], used: set[int], others: int) -> list[tuple[Wanted, int]]:
    """Those of `wanted` that get a slot, each with the lowest number that is free; `others` run without a number."""
    found: list[tuple[Wanted, int]] = []
    free = (number for number in count() if number not in used)
    number = next(free)
    for one in wanted:
        # Leases with numbers above a limit that was lowered count too, until they end.
        if number < one.most and len(used) + others + len(found) < one.most:
            found.append((one, number))
            number = next(free)
    return found


def _without_slot(
    tasks: Mapping[int, tuple[str, str | None]], valid: Collection[_Held], using: str
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
    held = _by_subject(_Held._make(row) for row in _rows(subjects, using).values_list(*_Held._fields))
    valid = _valid([slot for slots in held.values() for slot in slots], using)
    others = _without_slot({subject: place for subject, place in subjects.items() if place}, valid, using)
    return {subject: sum(slot in valid for slot in held[subject]) + others.get(subject, 0) for subject in subjects}


def holders(subject: int, using: str) -> list[int]:
    """The ids of the jobs whose leases have the slots of a subject, in the order of the slots. Two statements."""
    held = [_Held._make(row) for row in _rows([subject], using).values_list(*_Held._fields)]
    valid = _valid(held, using)
    return [slot.job_id for slot in held if slot in valid]


def _rows(subjects: Iterable[int], using: str) -> QuerySet[GateSlot]:
    return GateSlot.objects.using(using).filter(subject__in=sorted(subjects)).order_by("subject", "number")


def _by_subject(slots: Iterable[_Held]) -> dict[int, list[_Held]]:
    found: dict[int, list[_Held]] = defaultdict(list)
    for slot in slots:
        found[slot.subject].append(slot)
    return found


def _valid(slots: Collection[_Held], using: str) -> set[_Held]:
    """Those of `slots` whose leases have not ended."""
    if not slots:
        return set()
    fences = dict(_running(using).rows(ids={slot.job_id for slot in slots}))
    return {slot for slot in slots if fences.get(slot.job_id) == slot.fence}


@cache
def _lock(using: str) -> Prepared:
    rows = GateSlot.objects.using(using).filter(AnyOf(F("subject"), Keys("subjects", BigIntegerField())))
    return prepare_rows(rows.order_by("subject", "number").select_for_update().values_list(*_Held._fields))


@cache
def _running(using: str) -> Prepared:
    return prepare_rows(any_in_state(Job.Status.PROCESSING, using=using).values_list("pk", "fence"))


def _insert(fresh: list[_Held], using: str) -> set[int]:
    """Insert these slots, but those whose numbers others have taken meanwhile; the ids of the jobs that got theirs."""
    if not fresh:
        return set()
    rows = GateSlot.objects.using(using)
    rows.bulk_create((GateSlot(**slot._asdict()) for slot in fresh), ignore_conflicts=True)
    mine, found = set(fresh), _rows({slot.subject for slot in fresh}, using).values_list(*_Held._fields)
    return {slot.job_id for slot in map(_Held._make, found) if slot in mine}
