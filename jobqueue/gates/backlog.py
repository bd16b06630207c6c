"""The backlog of queues: the priorities in use, how many jobs are due there and wait, and how fast they end.

An index seek for each priority, whatever number of jobs has it. Producers of a queue that may be full read it, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from typing import NamedTuple

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.expressions import Slot, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.db.statements import LooseScan
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Job
from jobqueue.models.job import HELD_GATE, JobQuerySet
from jobqueue.ordering import KEY_GATE

INDEX = "ix_pick"
_QUEUE = UnestimatedSlot("queue", NameField())
_STATUS = UnestimatedSlot("status", Job._meta.get_field("status"))
_GATE, _LEVEL = Slot("gate", Job._meta.get_field("gate")), Slot("level", Job._meta.get_field("priority"))
#: from so many places on all levels of the table are read, up to so many for each place
MANY_PLACES, LEVELS_OF_A_PLACE = 10, 10
GATES = (0, KEY_GATE, HELD_GATE, FLOW_GATE)
#: the rate is that of the last jobs that ended in the last minute: of the first number of them in each priority, or of
#: more where so many ended in less than SPAN_SECONDS, because many ends are written at one instant
SAMPLES, SAMPLE_SECONDS, SPAN_SECONDS = (100, 1000, 10_000), 60.0, 2.0


class Level(NamedTuple):
    """The jobs of a queue with one status, gate and priority."""

    queue: str
    status: int
    gate: int
    level: int


def top_levels(places: Sequence[tuple[str, int, int]], using: str) -> list[Level]:
    """The highest priority of each (queue, status, gate) that has jobs. A statement for 100 of them."""
    runs = [{"queue": queue, "status": status, "gate": gate} for queue, status, gate in places]
    return list(map(Level._make, _top(using).seek_each(runs)))


def levels_below(levels: Sequence[Level], using: str) -> list[Level]:
    """Map each of `levels` to the next lower priority of its queue, status and gate, where there is one."""
    return list(map(Level._make, _below(using).seek_each([level._asdict() for level in levels])))


def ranks(
    places: Sequence[tuple[str, int, int]], using: str, within: tuple[str, str] | None = None
) -> Iterator[list[Level]]:
    """top_levels() of `places`, then the levels_below() these, and so on. No list is empty.

    Of many places one statement reads all, where the database does that at less cost; of the queues from the first to
    the last name of `within` alone.
    """
    found = _of_all(places, using, within) if len(places) >= MANY_PLACES else None
    if found is None:
        levels = top_levels(places, using)
        while levels:
            yield levels
            levels = levels_below(levels, using)
        return
    while levels := [of_place.pop() for of_place in found if of_place]:
        yield levels


def _of_all(
    places: Sequence[tuple[str, int, int]], using: str, within: tuple[str, str] | None
) -> list[list[Level]] | None:
    """The levels of each of `places`, the highest one last; None if the table has too many, or no scan reads them."""
    quote = connections[using].ops.quote_name
    columns = list(map(quote, ("queue", "status", "gate", "priority")))
    where = [] if within is None else [f"{quote('queue')} BETWEEN %s AND %s"]
    if not vendor(using).scans_combinations:
        return None
    sql = vendor(using).loose_scan_sql(LooseScan(quote(Job._meta.db_table), columns, INDEX, where=where))
    most = LEVELS_OF_A_PLACE * len(places)
    with connections[using].cursor() as cursor:
        cursor.execute(sql, [*(within or ()), most])
        found = list(map(Level._make, cursor.fetchall()))
    if len(found) >= most:
        return None
    wanted = set(places)
    return [list(levels) for place, levels in groupby(found, lambda level: level[:3]) if place in wanted]


def _rows(using: str) -> JobQuerySet:
    return Job.objects.using(using).filter(queue=_QUEUE, status=_STATUS, gate=_GATE)


@cache
def _top(using: str) -> Prepared:
    return _highest(_rows(using), using)


@cache
def _below(using: str) -> Prepared:
    return _highest(_rows(using).filter(priority__lt=_LEVEL), using)


def _highest(rows: JobQuerySet, using: str) -> Prepared:
    # In the reverse order of all columns of the index; else the database sorts.
    last = vendor(using).force_index(rows.order_by("-priority", "-run_at", "-id"), INDEX)
    return prepare_rows(last.values_list("queue", "status", "gate", "priority")[:1])


def due_count(queue: str, most: int, using: str, *, gates: Sequence[int] = GATES) -> int:
    """How many READY jobs of `queue` are due, counted up to `most`; also those that wait for a key or a gate.

    Two index seeks for each priority and gate in use, and one index entry for each job that is counted.
    """
    count = 0
    for gate in gates:
        for level in _levels(queue, Job.Status.READY, gate, using):
            if count >= most:
                return count
            count += len(_due(using, most - count).rows(queue=queue, gate=gate, level=level))
    return count


def ended_per_second(queue: str, using: str) -> float | None:
    """How many jobs of `queue` have ended DONE in a second lately, up to 10,000 in a priority; None if none has."""
    rate, levels = None, [*_levels(queue, Job.Status.DONE, 0, using)]
    for size in SAMPLES:
        rate, is_known = _ended([_ages(queue, level, size, using) for level in levels], size)
        if is_known:
            break
    return rate


def _ages(queue: str, level: int, size: int, using: str) -> list[float]:
    """How many seconds ago the last `size` jobs of a priority ended that ended in the last minute."""
    found = _done(using, size).rows(queue=queue, level=level)
    ages = ((now - at).total_seconds() for at, now in found if at is not None)
    return [age for age in ages if age <= SAMPLE_SECONDS]


def _ended(levels: Sequence[Sequence[float]], size: int) -> tuple[float | None, bool]:
    """The rate, and whether it would not be much higher if more than `size` jobs of each priority were read.

    The ends of all priorities are counted in the time for which all of them are known.
    """
    every = [age for ages in levels for age in ages]
    if not every:
        return None, True
    full = [ages for ages in levels if len(ages) == size]
    seconds = min(map(max, full), default=max(every))
    rate = sum(age <= seconds for age in every) / max(1.0, seconds)
    return rate, all(max(ages) - min(ages) >= SPAN_SECONDS for ages in full)


def _levels(queue: str, status: int, gate: int, using: str) -> Iterator[int]:
    """The priorities of such jobs, highest first: one index seek each."""
    found = top_levels([(queue, status, gate)], using)
    while found:
        yield found[0].level
        found = levels_below(found, using)


@lru_cache(maxsize=256)
def _due(using: str, most: int) -> Prepared:
    rows = Job.objects.using(using).filter(queue=_QUEUE, status=Unestimated(Job.Status.READY), gate=_GATE)
    rows = rows.filter(priority=_LEVEL, run_at__lte=UtcNow()).order_by("run_at", "id")
    return prepare_rows(vendor(using).force_index(rows, INDEX).values_list("pk")[:most])


@cache
def _done(using: str, size: int) -> Prepared:
    rows = Job.objects.using(using).filter(queue=_QUEUE, status=Job.Status.DONE, gate=0, priority=_LEVEL)
    last = vendor(using).force_index(rows.order_by("-run_at", "-id"), INDEX)
    return prepare_rows(last.values_list(Selected("finished_at"), Selected(UtcNow()))[:size])
