"""The priorities in use: an index seek for each, whatever number of jobs has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import NamedTuple

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.expressions import Slot, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet

INDEX = "ix_pick"
_QUEUE = UnestimatedSlot("queue", NameField())
_STATUS = UnestimatedSlot("status", Job._meta.get_field("status"))
_GATE, _LEVEL = Slot("gate", Job._meta.get_field("gate")), Slot("level", Job._meta.get_field("priority"))


#: from so many places on all levels of the table are read, up to so many for each place
MANY_PLACES, LEVELS_OF_A_PLACE = 10, 10


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
    sql = vendor(using).loose_scan_sql(quote(Job._meta.db_table), columns, INDEX, where=where)
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
