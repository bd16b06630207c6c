"""Slots: rows that leases have, with numbers below the limit. The primary key refuses one more than there are.

A slot counts only while its job is PROCESSING with the slot's fence. So a lease that ends frees it, however it ends,
and nothing has to be undone after a crash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from django.db.models import QuerySet

from jobqueue.db.upsert import upsert
from jobqueue.models import GateSlot, Job


class Wanted(NamedTuple):
    """A slot that a lease needs: of `subject`, where there are `most`."""

    subject: int
    most: int
    job_id: int
    fence: int


class _Held(NamedTuple):
    """A row: the slot, and the lease that has it or had it."""

    subject: int
    number: int
    job_id: int
    fence: int


def take_slots(wanted: Iterable[Wanted], using: str, *, taken: Collection[int] = ()) -> set[int]:
    """Take a slot for each of `wanted`, in the open transaction; the ids of the jobs that got one, first come first.

    The rows of the subjects are locked in their order, so that two claims do not wait for each other crosswise. A slot
    that another claim inserts just now counts as taken. `taken`: the ids of jobs that got one in this transaction
    before; their leases do not run yet.
    """
    groups: dict[int, list[Wanted]] = defaultdict(list)
    for one in wanted:
        groups[one.subject].append(one)
    # Locked before it is read which leases have ended: nobody else can give an ended lease's slot away after that.
    locked = _rows(groups, using).select_for_update()
    held = _by_subject(_Held._make(row) for row in locked.values_list(*_Held._fields))
    found = [slot for slots in held.values() for slot in slots]
    valid = _valid(found, using) | {slot for slot in found if slot.job_id in taken}
    over: list[GateSlot] = []
    fresh: list[GateSlot] = []
    for subject in sorted(groups):
        known = {slot.number for slot in held[subject]}
        used = {slot.number for slot in held[subject] if slot in valid}
        most = groups[subject][0].most
        # Leases with numbers above a limit that was lowered count too, until they end.
        free = [number for number in range(most) if number not in used][: max(0, most - len(used))]
        for one, number in zip(groups[subject], free, strict=False):
            row = GateSlot(subject=subject, number=number, job_id=one.job_id, fence=one.fence)
            (over if number in known else fresh).append(row)
    if over:
        rows = GateSlot.objects.using(using)
        upsert(rows, over, keys=("subject", "number"), changed=("job_id", "fence"))
    return {row.job_id for row in over} | _insert(fresh, using)


def in_use(subjects: Collection[int], using: str) -> Mapping[int, int]:
    """How many slots of each subject leases have."""
    held = _by_subject(_Held._make(row) for row in _rows(subjects, using).values_list(*_Held._fields))
    valid = _valid([slot for slots in held.values() for slot in slots], using)
    return {subject: sum(slot in valid for slot in held[subject]) for subject in subjects}


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
    running = Job.objects.using(using).filter(pk__in=[slot.job_id for slot in slots], status=Job.Status.PROCESSING)
    fences = dict(running.values_list("pk", "fence"))
    return {slot for slot in slots if fences.get(slot.job_id) == slot.fence}


def _insert(fresh: list[GateSlot], using: str) -> set[int]:
    """Insert these slots, but those whose numbers others have taken meanwhile; the ids of the jobs that got theirs."""
    if not fresh:
        return set()
    rows = GateSlot.objects.using(using)
    rows.bulk_create(fresh, ignore_conflicts=True)
    mine = {(slot.subject, slot.number, slot.job_id, slot.fence) for slot in fresh}
    found = rows.filter(subject__in=sorted({slot.subject for slot in fresh}))
    return {key[2] for key in found.values_list(*_Held._fields) if tuple(key) in mine}
