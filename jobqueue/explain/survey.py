"""Which queues have READY jobs, behind which gates, and how many of them are due: for explain_backlog()."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from jobqueue.explain.ready_jobs import (
    ALL_GATES,
    LEVELS_MAX,
    due_of_level,
    first_gate,
    first_of_level,
    next_gate,
)
from jobqueue.gates.levels import levels_below, top_levels
from jobqueue.models import Job
from jobqueue.transitions.claiming.candidates import queue_names

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


class Place(NamedTuple):
    """A queue with READY jobs behind a gate, and the lowest of their priorities."""

    queue: str
    gate: int
    lowest: int


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
    ready = sorted(map(Place._make, first))
    spots = _spots(_all_gates(ready[:QUEUES_MAX], using), now, using)
    _count(spots, using)
    cut = len(names) > NAMES_MAX or len(ready) > QUEUES_MAX
    return Survey(now, sorted(spots, key=lambda spot: (-spot.due, spot.queue, spot.gate)), cut)


def _all_gates(found: Sequence[Place], using: str) -> list[Place]:
    """These places, and those of the same queues at the gates above."""
    places = list(found)
    for _ in ALL_GATES[1:]:
        found = list(map(Place._make, next_gate(using).seek_each([place._asdict() for place in found])))
        places += found
    return places


def _spots(places: Sequence[Place], now: datetime, using: str) -> list[Spot]:
    found = top_levels([(place.queue, Job.Status.READY, place.gate) for place in places], using)
    spots = {(level.queue, level.gate): Spot(level.queue, level.gate) for level in found}
    lowest, looked = {(place.queue, place.gate): place.lowest for place in places}, 0
    for _ in range(LEVELS_MAX):
        if not found or looked + len(found) > max(PRIORITIES_MAX, len(spots)):
            break
        looked += len(found)
        runs = [level._asdict() for level in found]
        for queue, gate, level, run_at, job_id in first_of_level(using).seek_each(runs):
            _note(spots[queue, gate], Level(queue, gate, level), Delayed(run_at, job_id), is_due=run_at <= now)
        found = levels_below([one for one in found if one.level > lowest[one.queue, one.gate]], using)
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
