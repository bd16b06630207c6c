"""Slots: rows that leases have, with numbers below the limit. The primary key refuses one more than there are.

A slot counts only while its job is PROCESSING with the slot's fence. So a lease that ends frees it, however it ends,
and nothing has to be undone after a crash.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from django.db import connections
from django.db.models import BigIntegerField, F, QuerySet

from jobqueue.conf.known_tasks import names_of
from jobqueue.db import vendor
from jobqueue.db.expressions import AnyOf, Keys, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.upsert import upsert
from jobqueue.gates.limits import Place, limits_of
from jobqueue.gates.locking import tries
from jobqueue.gates.rules import last_rules
from jobqueue.models import GateSlot, Job
from jobqueue.models.rows import any_in_state

#: a limit above this is not counted: no number of workers reaches it
COUNTED_MAX = 100_000


class Slot(NamedTuple):
    """A row: the slot, and the lease that has it or had it."""

    subject: int
    number: int
    job_id: int
    fence: int


class FreeSlots:
    """The free slots of one subject, whose rows the open transaction has locked."""

    def __init__(
        self, held: Collection[Slot], valid: Collection[Slot], others: int, *, is_locked: bool = False
    ) -> None:
        #: another transaction has rows of them: how many are free is not known
        self.is_locked = is_locked
        self.known = {slot.number for slot in held}
        self._used = {slot.number for slot in held if slot in valid}
        # Leases with numbers above a limit that was lowered count too, until they end; `others` run without a number.
        self._running = len(self._used) + others
        self._next = 0

    def is_full(self, most: int) -> bool:
        """Whether `most` leases have slots, or may have them. Jobs of tasks with other limits may share a key."""
        return self.is_locked or self._running >= most

    def take(self) -> int:
        """The lowest number that is free."""
        while self._next in self._used:
            self._next += 1
        self._used.add(self._next)
        self._running += 1
        return self._next


def lock_slots(subjects: Mapping[int, Place], using: str) -> dict[int, FreeSlots]:
    """Lock the slots of these subjects for the open transaction. The values: whose slots they are.

    A subject of which another transaction keeps a row locked has no free slots.
    """
    if not subjects:
        return {}
    # Locked before it is read which leases have ended: nobody else can give an ended lease's slot away after that.
    rows, locked = _lock_free(sorted(subjects), using)
    held = _by_subject(rows)
    valid = _valid([slot for slots in held.values() for slot in slots], using)
    others = _without_slot(subjects, valid, using)
    return {
        subject: FreeSlots(held[subject], valid, others.get(subject, 0), is_locked=subject in locked)
        for subject in subjects
    }


def _lock_free(subjects: Sequence[int], using: str) -> tuple[list[Slot], set[int]]:
    """The slots that others have not locked, now locked; the subjects of which others have locked some."""
    rows: list[Slot] = []
    locked: set[int] = set()
    for _ in tries():
        rows = [Slot._make(row) for row in _lock(using).rows(subjects=subjects)]
        if not vendor(using).single_writer:
            mine = {(slot.subject, slot.number) for slot in rows}
            # Also one that was committed between the two statements: it is not locked.
            locked = {slot.subject for slot in _read(subjects, using) if (slot.subject, slot.number) not in mine}
        if not locked:
            break
    return rows, locked


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


def _without_slot(places: Mapping[int, Place], valid: Collection[Slot], using: str) -> Mapping[int, int]:
    """By subject, how many leases of its task or key have no slot: they began before the limit was known.

    Reads the index entries of the jobs that run in each queue.
    """
    slotted = {slot.job_id for slot in valid}
    found = {
        subject: sum(job_id not in slotted for (job_id,) in _of_task(place.queue, place.task, using))
        for subject, place in places.items()
        if place.task is not None
    }
    keys: defaultdict[str, set[bytes]] = defaultdict(set)
    for place in places.values():
        if place.key is not None:
            keys[place.queue].add(place.key)
    counts: Counter[tuple[str, bytes]] = Counter()
    for queue, some in keys.items():
        counts += _of_keys(queue, some, slotted, using)
    return found | {subject: counts[one.queue, one.key] for subject, one in places.items() if one.key is not None}


def _in_queue(queue: str, using: str, **conditions: object) -> QuerySet[Job]:
    rows = Job.objects.using(using).filter(queue=Unestimated(queue), status=Unestimated(Job.Status.PROCESSING))
    return vendor(using).force_index(rows.filter(**conditions), "ix_pick")


def _of_task(queue: str, task: str, using: str) -> Iterable[tuple[int]]:
    # Those with a key count for their key.
    return _in_queue(queue, using, task__in=names_of(task), concurrency_key=None).values_list("pk")


def _of_keys(queue: str, keys: Collection[bytes], slotted: Collection[int], using: str) -> Counter[tuple[str, bytes]]:
    """How many leases with each of these keys have no slot, although their tasks have a limit now."""
    rows = _in_queue(queue, using, concurrency_key__in=sorted(keys))
    return Counter((queue, key) for key, _ in _limited(queue, rows, slotted, using))


def keyed_without_slot(queues: Mapping[int, str], using: str) -> Counter[int]:
    """How many leases have no slot of these subjects, which are those of keys in a queue, although they count there."""
    slotted = {slot.job_id for slot in _valid(_read(queues, using), using)}
    found: Counter[int] = Counter()
    for queue in set(queues.values()):
        rows = _in_queue(queue, using, concurrency_key__isnull=False)
        found.update(subject for _, subject in _limited(queue, rows, slotted, using) if subject in queues)
    return found


def _limited(queue: str, rows: QuerySet[Job], slotted: Collection[int], using: str) -> Iterator[tuple[bytes, int]]:
    """The keys and subjects of leases without a slot whose tasks have a limit now."""
    known = last_rules(using)
    for job_id, task, key in rows.values_list("pk", "task", "concurrency_key"):
        if job_id not in slotted and key is not None:
            slots, _ = limits_of(queue, task, bytes(key), known)
            if slots is not None:
                yield bytes(key), slots.subject.number


def in_use(places: Mapping[int, Place | None], using: str) -> Mapping[int, int]:
    """How many slots of each subject leases have. The values: whose slots they are; None: those of a key."""
    held = _by_subject(_read(places, using))
    valid = _valid([slot for slots in held.values() for slot in slots], using)
    others = _without_slot({subject: place for subject, place in places.items() if place}, valid, using)
    return {subject: sum(slot in valid for slot in held[subject]) + others.get(subject, 0) for subject in places}


def holders(subject: int, using: str) -> list[int]:
    """The ids of the jobs whose leases have the slots of a subject, in the order of the slots. Two statements."""
    held = _read([subject], using)
    valid = _valid(held, using)
    return [slot.job_id for slot in held if slot in valid]


def running(queue: str, most: int, using: str) -> int:
    """How many jobs of `queue` are PROCESSING, counted up to `most`: index entries, without a lock."""
    return len(_of_queue(using, min(most, COUNTED_MAX)).rows(queue=queue))


def running_ids(queue: str, most: int, using: str) -> list[int]:
    """The ids of up to `most` of them, in the order of ix_pick."""
    return [job_id for (job_id,) in _of_queue(using, min(most, COUNTED_MAX)).rows(queue=queue)]


@cache
def _of_queue(using: str, most: int) -> Prepared:
    rows = Job.objects.using(using).filter(
        queue=UnestimatedSlot("queue", NameField()), status=Unestimated(Job.Status.PROCESSING)
    )
    # In the order of the index: PostgreSQL could take a walk through the table for cheaper.
    ordered = vendor(using).force_index(rows, "ix_pick").order_by("gate", "priority", "run_at", "id")
    return prepare_rows(ordered.values_list("pk")[:most])


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
    return prepare_rows(vendor(using).lock_rows(_slots(using)).values_list(*Slot._fields))


@cache
def _running(using: str) -> Prepared:
    return prepare_rows(any_in_state(Job.Status.PROCESSING, using=using).values_list("pk", "fence"))


def _insert(fresh: list[Slot], using: str) -> set[int]:
    """Insert these slots, but those whose numbers others have taken meanwhile; the ids of the jobs that got theirs."""
    names, keys = ("subject", "number"), [(slot.subject, slot.number) for slot in fresh]
    busy = vendor(using).locks.being_inserted(connections[using], GateSlot, names, keys)
    fresh = [slot for slot in fresh if (slot.subject, slot.number) not in busy]
    if not fresh:
        return set()
    vendor(using).insert_missing(connections[using], [GateSlot(**slot._asdict()) for slot in fresh])
    mine = set(fresh)
    return {slot.job_id for slot in _read({slot.subject for slot in fresh}, using) if slot in mine}
