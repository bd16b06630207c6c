"""The priorities in use: an index seek for each, whatever number of jobs has it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

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
    """For each of `levels` the next lower priority of the same queue, status and gate, where there is one."""
    return list(map(Level._make, _below(using).seek_each([level._asdict() for level in levels])))


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
