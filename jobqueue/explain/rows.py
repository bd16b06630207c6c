"""The rows that explanations are made of: jobs, what is set for their queues, and the first jobs behind each gate.

Index seeks only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.expressions import Slot, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_count, prepare_rows
from jobqueue.gates.backlog import GATES, INDEX, levels_below, top_levels
from jobqueue.gates.rules import Rules, rules_from
from jobqueue.models import FlowRule, Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import JobQuerySet
from jobqueue.transitions.claiming.candidates import queue_names

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    class Facts(TypedDict):
        """What read_jobs() adds to a row."""

        now: datetime

    ReadJob = WithAnnotations[Job, Facts]
else:
    ReadJob = Job

#: rows of job_flow that are read for one queue
CONTROLS_MAX = 100_000
_LARGE = ("payload", "result", "last_error", "progress", "options")


@dataclass(frozen=True, slots=True)
class Place:
    """A queue at an instant of the database's clock, with what operators have set there."""

    queue: str
    using: str
    now: datetime
    #: by task; "" is the whole queue. Pauses that are over are among them: `rules` tells.
    controls: dict[str, FlowRule]
    rules: Rules


def read_jobs(ids: Sequence[int], using: str) -> list[ReadJob]:
    """The jobs with these ids, one at least, each with the database's time as `now`, without their large columns.

    One statement.
    """
    # A single one by equality: it may be a number that no column holds, which Django tells only there.
    wanted = {"pk__in": ids} if len(ids) > 1 else {"pk": ids[0]}
    return list(Job.objects.using(using).filter(**wanted).defer(*_LARGE).annotate(now=Selected(UtcNow())))


def read_place(queue: str, now: datetime, using: str, tasks: Collection[str | None] | None = None) -> Place:
    """What is set for `queue` and for these tasks in it; None: for any task. One statement."""
    rows = FlowRule.objects.using(using).filter(queue=queue)
    if tasks is not None:
        rows = rows.filter(task__in={"", *filter(None, tasks)})
    found = list(rows.order_by("queue", "task").annotate(now=Selected(UtcNow()))[:CONTROLS_MAX])
    return Place(queue, using, now, {row.task: row for row in found}, rules_from(found))


def unread_place(queue: str, now: datetime, using: str) -> Place:
    """`queue` as if operators had set nothing: for those who have no time to read that. No statement."""
    return Place(queue, using, now, {}, rules_from([]))


def read_places(queues: Collection[str], now: datetime, using: str) -> dict[str, Place]:
    """What is set for each of these queues, at most CONTROLS_MAX rows of all of them. One statement."""
    rows = FlowRule.objects.using(using).filter(queue__in=queues).order_by("queue", "task")
    found = list(rows.annotate(now=Selected(UtcNow()))[:CONTROLS_MAX])
    rules = rules_from(found)
    controls: dict[str, dict[str, FlowRule]] = {queue: {} for queue in queues}
    for row in found:
        controls[row.queue][row.task] = row
    return {queue: Place(queue, using, now, own, rules) for queue, own in controls.items()}


#: what `gate` of a READY job may be; behind the last one it waits for its parents
ALL_GATES = (*GATES, PARENTS_GATE)
#: priorities of a queue that are looked at, the highest first
LEVELS_MAX = 8


@cache
def first_gate(using: str) -> Prepared:
    """The slot `queue`, the lowest gate behind which it has READY jobs, if it has any, and their lowest priority."""
    return _lowest_gate(_of_queue(using), using)


@cache
def next_gate(using: str) -> Prepared:
    """The same for the lowest gate above the slot `gate`."""
    above = Slot("gate", Job._meta.get_field("gate"))
    return _lowest_gate(_of_queue(using).filter(gate__gt=above), using)


@cache
def first_of_level(using: str) -> Prepared:
    """Queue, gate, priority, run_at and id of the READY job of a priority that is due first."""
    rows = _in_order(_rows(using).filter(priority=_level()), using)
    return prepare_rows(rows.values_list("queue", "gate", "priority", Selected("run_at"), "pk")[:1])


@lru_cache(maxsize=64)
def due_of_level(using: str, most: int) -> Prepared:
    """How many jobs of a priority are due, up to `most`, and their queue, gate and priority. Index entries alone."""
    columns = ("queue", "gate", "priority")
    return prepare_count(_in_order(_due(using), using).values_list(*columns)[:most], *columns)


@lru_cache(maxsize=8)
def first_due_of_level(using: str, most: int) -> Prepared:
    """Id, queue, gate, task and wait_reason of the first due jobs of a priority, up to `most`."""
    columns = ("pk", "queue", "gate", "task", "wait_reason")
    return prepare_rows(_in_order(_due(using), using).values_list(*columns)[:most])


@lru_cache(maxsize=8)
def next_of_level(using: str, most: int) -> Prepared:
    """Id, queue, task and wait_reason of the jobs of a priority that are due next, up to `most`."""
    rows = _rows(using).filter(priority=_level(), run_at__gt=UtcNow())
    return prepare_rows(_in_order(rows, using).values_list("pk", "queue", "task", "wait_reason")[:most])


def _due(using: str) -> JobQuerySet:
    return _rows(using).filter(priority=_level(), run_at__lte=UtcNow())


def _rows(using: str) -> JobQuerySet:
    return _of_queue(using).filter(gate=Slot("gate", Job._meta.get_field("gate")))


def _of_queue(using: str) -> JobQuerySet:
    return Job.objects.using(using).filter(
        queue=UnestimatedSlot("queue", NameField()), status=Unestimated(Job.Status.READY)
    )


def _lowest_gate(rows: JobQuerySet, using: str) -> Prepared:
    # In the order of the index; else PostgreSQL may read the table until it meets one.
    first = vendor(using).force_index(rows.order_by("gate", "priority", "run_at", "id"), INDEX)
    return prepare_rows(first.values_list("queue", "gate", "priority")[:1])


def _level() -> Slot:
    return Slot("level", Job._meta.get_field("priority"))


def _in_order(rows: JobQuerySet, using: str) -> JobQuerySet:
    return vendor(using).force_index(rows.order_by("run_at", "id"), INDEX)


#: names of queues that are looked at, and of those the ones with READY jobs; the first by name
NAMES_MAX, QUEUES_MAX = 1000, 200
#: priorities, each of a queue and gate, that are looked at in all; the highest of each queue and gate always is
PRIORITIES_MAX = 1500
#: due jobs that are counted in a queue, gate and priority: at most, and at least if there are as many
COUNT_MAX, COUNT_LEAST = 10_000, 10
#: index entries that the first pass reads, unless there are more priorities than a tenth of that; later ones five times
ENTRIES_MAX = 20_000
#: priorities, each of a queue and gate, that are counted again: for more of them, planning costs more than reading
RECOUNTED_MAX = 300


class Level(NamedTuple):
    """A priority of READY jobs in a queue and behind a gate."""

    queue: str
    gate: int
    level: int


class Delayed(NamedTuple):
    """A job whose time has not come."""

    run_at: datetime
    job_id: int


@dataclass(slots=True)
class Spot:
    """The READY jobs of a queue behind one gate; gate 0 is none."""

    queue: str
    gate: int
    levels: list[Level] = field(default_factory=list)  # the highest first, with due jobs or without
    due_levels: list[Level] = field(default_factory=list)
    first_due: int = 0  # an id; 0: none is due
    due: int = 0
    capped: bool = False  # there may be more due ones: not all were counted, or not all priorities were looked at
    delayed: Delayed | None = None  # the one that is due next, of those priorities above the first with a due job


@dataclass(frozen=True, slots=True)
class Survey:
    """The spots of the queues that were looked at, those with the most due jobs first."""

    now: datetime
    spots: list[Spot]
    cut: bool  # there are more queues


def survey(now: datetime, using: str) -> Survey:
    """Look at all queues. A few statements for each hundred names, gates and priorities in use."""
    names = queue_names(using=using, limit=NAMES_MAX + 1)
    first = first_gate(using).seek_each([{"queue": name} for name in names[:NAMES_MAX]])
    ready = sorted(map(Level._make, first))
    lowest = {(one.queue, one.gate): one.level for one in _all_gates(ready[:QUEUES_MAX], using)}
    spots = spots_of([*lowest], now, using, lowest=lowest)
    _count(spots, using)
    cut = len(names) > NAMES_MAX or len(ready) > QUEUES_MAX
    return Survey(now, sorted(spots, key=lambda spot: (-spot.due, spot.queue, spot.gate)), cut)


def _all_gates(found: Sequence[Level], using: str) -> list[Level]:
    """The lowest priorities of the same queues, at these gates and at those above."""
    all_gates = list(found)
    for _ in ALL_GATES[1:]:
        runs = [{"queue": one.queue, "gate": one.gate} for one in found]
        found = list(map(Level._make, next_gate(using).seek_each(runs)))
        all_gates += found
    return all_gates


def spots_of(
    places: Sequence[tuple[str, int]],
    now: datetime,
    using: str,
    *,
    lowest: Mapping[tuple[str, int], int] | None = None,
) -> list[Spot]:
    """The first READY jobs of these queues and gates, not counted. Two statements for each priority that is looked at.

    Those down to the `lowest`, or to that of the first due job; LEVELS_MAX at most.
    """
    found = top_levels([(queue, Job.Status.READY, gate) for queue, gate in places], using)
    spots, looked = {(level.queue, level.gate): Spot(level.queue, level.gate) for level in found}, 0
    for _ in range(LEVELS_MAX):
        if not found or looked + len(found) > max(PRIORITIES_MAX, len(spots)):
            break
        looked += len(found)
        runs = [level._asdict() for level in found]
        for queue, gate, level, run_at, job_id in first_of_level(using).seek_each(runs):
            _note(spots[queue, gate], Level(queue, gate, level), Delayed(run_at, job_id), is_due=run_at <= now)
        if lowest is None:
            found = [one for one in found if not spots[one.queue, one.gate].first_due]
        else:
            found = [one for one in found if one.level > lowest[one.queue, one.gate]]
        found = levels_below(found, using)
    for level in found:
        spots[level.queue, level.gate].capped = True
    return list(spots.values())


def _note(spot: Spot, level: Level, first: Delayed, *, is_due: bool) -> None:
    spot.levels.append(level)
    if is_due:
        spot.due_levels.append(level)
        spot.first_due = spot.first_due or first.job_id
    elif not spot.first_due:
        spot.delayed = first if spot.delayed is None else min(spot.delayed, first)


def _count(spots: Sequence[Spot], using: str) -> None:
    """Count few jobs of each priority, then more where there are more: many small ones do not cut short a large one."""
    levels, counts, most = [level for spot in spots for level in spot.due_levels], dict[tuple[object, ...], int](), 0
    while levels and most < COUNT_MAX:
        allowed = min(COUNT_MAX, max(COUNT_LEAST, 4 * most, ENTRIES_MAX // len(levels)))
        if most and (allowed * len(levels) > 5 * ENTRIES_MAX or len(levels) > RECOUNTED_MAX):
            break
        most = allowed
        for number, *level in due_of_level(using, most).seek_each([level._asdict() for level in levels]):
            counts[tuple(level)] = number
        levels = [level for level in levels if counts.get(level, 0) >= most]
    more = {(level.queue, level.gate) for level in levels}
    for spot in spots:
        spot.due = sum(counts.get(level, 0) for level in spot.due_levels)
        spot.capped = spot.capped or (spot.queue, spot.gate) in more
