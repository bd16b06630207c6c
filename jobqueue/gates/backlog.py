"""How many jobs of a queue are due and wait, and how fast they end: for producers of a queue that may be full."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache, lru_cache

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.expressions import Slot, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.gates.levels import INDEX, levels_below, top_levels
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Job
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE

GATES = (0, KEY_GATE, HELD_GATE, FLOW_GATE)
#: the rate is that of the last jobs that ended, of at most so many in each priority, in the last minute
SAMPLE, SAMPLE_SECONDS = 100, 60.0
_QUEUE = UnestimatedSlot("queue", NameField())
_GATE, _LEVEL = Slot("gate", Job._meta.get_field("gate")), Slot("level", Job._meta.get_field("priority"))


def due_count(queue: str, most: int, using: str) -> int:
    """How many READY jobs of `queue` are due, counted up to `most`; also those that wait for a key or a gate.

    Two index seeks for each priority and gate in use, and one index entry for each job that is counted.
    """
    count = 0
    for gate in GATES:
        for level in _levels(queue, Job.Status.READY, gate, using):
            if count >= most:
                return count
            count += len(_due(using, most - count).rows(queue=queue, gate=gate, level=level))
    return count


def ended_per_second(queue: str, using: str) -> float | None:
    """How many jobs of `queue` have ended DONE in a second lately; None if none has."""
    now, ends = None, list[datetime]()
    for level in _levels(queue, Job.Status.DONE, 0, using):
        found = _done(using).rows(queue=queue, level=level)
        ends += [at for at, _ in found if at is not None]
        now = found[0][1] if found else now
    if now is None or not ends:
        return None
    lately = [age for at in ends if (age := (now - at).total_seconds()) <= SAMPLE_SECONDS]
    return len(lately) / max(1.0, max(lately)) if lately else None


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
def _done(using: str) -> Prepared:
    rows = Job.objects.using(using).filter(queue=_QUEUE, status=Job.Status.DONE, gate=0, priority=_LEVEL)
    last = vendor(using).force_index(rows.order_by("-run_at", "-id"), INDEX)
    return prepare_rows(last.values_list(Selected("finished_at"), Selected(UtcNow()))[:SAMPLE])
