"""Statements that seek the READY jobs of a queue behind a gate, by priority; they run for many queues at once."""

from __future__ import annotations

from functools import cache, lru_cache

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.expressions import Slot, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_count, prepare_rows
from jobqueue.gates.backlog import GATES
from jobqueue.gates.levels import INDEX
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import JobQuerySet

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
