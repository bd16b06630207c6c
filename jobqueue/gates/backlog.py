"""How many jobs of a queue are due and wait, and how fast they end: for producers of a queue that may be full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
#: the rate is that of the last jobs that ended in the last minute: of the first number of them in each priority, or of
#: more where so many ended in less than SPAN_SECONDS, because many ends are written at one instant
SAMPLES, SAMPLE_SECONDS, SPAN_SECONDS = (100, 1000, 10_000), 60.0, 2.0
_QUEUE = UnestimatedSlot("queue", NameField())
_GATE, _LEVEL = Slot("gate", Job._meta.get_field("gate")), Slot("level", Job._meta.get_field("priority"))


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
