"""The first READY job of each gate of a queue: index seeks, whose number depends on the priorities in use alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

from jobqueue.db import vendor
from jobqueue.db.clock import Selected
from jobqueue.db.expressions import Slot, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.gates.backlog import GATES
from jobqueue.gates.levels import INDEX
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import JobQuerySet

#: priorities of a queue that are looked at, the highest first
LEVELS_MAX = 8


@dataclass(slots=True)
class FirstJobs:
    """By gate the id of the first due job, or if none is due of the one that is due first; and whether it is due."""

    due: dict[int, int] = field(default_factory=dict)
    later: dict[int, int] = field(default_factory=dict)
    cut: bool = False  # there are more priorities than were looked at


def first_jobs(queue: str, now: datetime, using: str) -> FirstJobs:
    """The first READY jobs of `queue`. Two statements for each priority above and with the first due job.

    Of LEVELS_MAX priorities at most; one more if no job is due.
    """
    answer, earliest = FirstJobs(), dict[int, datetime]()
    found = _top(using).rows_of_each([{"queue": queue, "gate": gate} for gate in (*GATES, PARENTS_GATE)])
    for _ in range(LEVELS_MAX):
        levels = [{"queue": queue, "gate": gate, "level": level} for gate, level in found]
        for gate, run_at, job_id in _first(using).rows_of_each(levels):
            if run_at <= now:
                answer.due[gate] = job_id
            elif gate not in earliest or run_at < earliest[gate]:
                earliest[gate], answer.later[gate] = run_at, job_id
        levels = [level for level in levels if level["gate"] not in answer.due]
        found = _below(using).rows_of_each(levels)
        if not found:
            break
    answer.cut = bool(found)
    return answer


def _rows(using: str) -> JobQuerySet:
    return Job.objects.using(using).filter(
        queue=UnestimatedSlot("queue", NameField()),
        status=Unestimated(Job.Status.READY),
        gate=Slot("gate", Job._meta.get_field("gate")),
    )


def _level() -> Slot:
    return Slot("level", Job._meta.get_field("priority"))


@cache
def _top(using: str) -> Prepared:
    return _highest(_rows(using), using)


@cache
def _below(using: str) -> Prepared:
    return _highest(_rows(using).filter(priority__lt=_level()), using)


def _highest(rows: JobQuerySet, using: str) -> Prepared:
    # In the reverse order of all columns of the index; else the database sorts.
    last = vendor(using).force_index(rows.order_by("-priority", "-run_at", "-id"), INDEX)
    return prepare_rows(last.values_list("gate", "priority")[:1])


@cache
def _first(using: str) -> Prepared:
    rows = _rows(using).filter(priority=_level()).order_by("run_at", "id")
    return prepare_rows(vendor(using).force_index(rows, INDEX).values_list("gate", Selected("run_at"), "pk")[:1])
