"""How many jobs of each queue wait, run and have failed: index entries, counted up to a cap, in few statements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.expressions import Slot, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_count
from jobqueue.gates.levels import INDEX, Level, ranks
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE, JobQuerySet
from jobqueue.ordering import KEY_GATE

#: counts are exact up to this
COUNT_MAX = 10_000
COUNTS = ("ready", "scheduled", "running", "failed")
#: priorities of one queue and gate that are looked at, the highest first
LEVELS_MAX = 100
#: gates whose due jobs are ready: they wait for a worker, for their key, or for a limit
READY_GATES = (0, KEY_GATE, FLOW_GATE)
#: gates whose jobs wait for something else, whatever their run_at: a person, or their parents
LATER_GATES = (HELD_GATE, PARENTS_GATE)


@dataclass(slots=True)
class Live:
    """The jobs of one queue that have not ended, and the failed ones; each count is exact up to a bound."""

    ready: int = 0
    scheduled: int = 0
    running: int = 0
    failed: int = 0
    oldest_run_at: datetime | None = None  # of the ready ones
    capped: bool = False  # one of the counts, at least, is more

    def cap(self, most: int) -> None:
        """Bound the counts."""
        self.capped = self.capped or max(self.ready, self.scheduled, self.running, self.failed) > most
        for name in COUNTS:
            setattr(self, name, min(most, getattr(self, name)))


def count_live(
    queues: Sequence[str],
    using: str,
    check: Callable[[], None],
    most: int | None = None,
    only: Collection[str] = COUNTS,
) -> dict[str, Live]:
    """The counts of each of `queues`, exact to `most` or COUNT_MAX. check() is called between statements; it may raise.

    `only`: the counts that are wanted; the others stay 0. Some index seeks for each priority in use, and an index entry
    for each job that is counted.
    """
    found = {queue: Live() for queue in queues}
    most = COUNT_MAX if most is None else most
    check()
    gates = (*READY_GATES, *LATER_GATES) if "scheduled" in only else READY_GATES
    for rank, levels in enumerate(
        ranks([(queue, Job.Status.READY, gate) for queue in queues for gate in gates], using)
    ):
        if rank == LEVELS_MAX:
            for level in levels:
                found[level.queue].capped = True
            break
        _count_waiting(found, levels, using, check, most)
        if "scheduled" in only:
            _count_later(found, levels, using, check, most)
        check()
    for status, name in ((Job.Status.PROCESSING, "running"), (Job.Status.FAILED, "failed")):
        if name not in only:
            continue
        check()
        runs = [{"queue": queue, "status": status} for queue in queues]
        for count, queue in _of_status(using, most).seek_each(runs, 20):
            if count:
                setattr(found[queue], name, count)
    for live in found.values():
        live.cap(most)
    return found


def _count_waiting(
    found: dict[str, Live], levels: Sequence[Level], using: str, check: Callable[[], None], most: int
) -> None:
    """Add the due jobs of `levels`."""
    due = [level for level in levels if level.gate in READY_GATES]
    for rows in (most + 1, 1):
        # Where enough are counted, only the oldest one is looked up.
        runs = [level._asdict() for level in due if (found[level.queue].ready > most) == (rows == 1)]
        check()
        for count, queue, oldest in _due(using, rows).seek_each(runs, 20):
            if not count:
                continue
            live = found[queue]
            live.ready += count
            if oldest is not None and (live.oldest_run_at is None or oldest < live.oldest_run_at):
                live.oldest_run_at = oldest


def _count_later(
    found: dict[str, Live], levels: Sequence[Level], using: str, check: Callable[[], None], most: int
) -> None:
    """Add the jobs of `levels` that are not due, or wait for something else."""
    later = [level for level in levels if found[level.queue].scheduled <= most]
    for gates, counter in ((READY_GATES, _not_due), (LATER_GATES, _any_time)):
        check()
        runs = [level._asdict() for level in later if level.gate in gates]
        for count, queue in counter(using, most).seek_each(runs, 20):
            if count:
                found[queue].scheduled += count


_QUEUE, _GIVEN = UnestimatedSlot("queue", NameField()), Slot("queue", NameField())


def _waiting(using: str) -> JobQuerySet:
    """The READY jobs of one level, in index order."""
    rows = Job.objects.using(using).filter(
        queue=_QUEUE,
        status=Unestimated(Job.Status.READY),
        gate=Slot("gate", Job._meta.get_field("gate")),
        priority=Slot("level", Job._meta.get_field("priority")),
    )
    return rows.order_by("run_at", "id")


@cache
def _due(using: str, rows: int) -> Prepared:
    """The lowest run_at, too; None if there are none."""
    due = _waiting(using).filter(run_at__lte=UtcNow()).annotate(at=Selected("run_at"))
    return prepare_count(_by_index(due).values_list("at")[:rows], "at", given=[_GIVEN])


@cache
def _not_due(using: str, most: int) -> Prepared:
    return _counted(_waiting(using).filter(run_at__gt=UtcNow()), most + 1)


@cache
def _any_time(using: str, most: int) -> Prepared:
    return _counted(_waiting(using), most + 1)


@cache
def _of_status(using: str, most: int) -> Prepared:
    status = UnestimatedSlot("status", Job._meta.get_field("status"))
    rows = Job.objects.using(using).filter(queue=_QUEUE, status=status)
    # In the order of the index: PostgreSQL could take a walk through the table for cheaper.
    return _counted(rows.order_by("gate", "priority", "run_at", "id"), most + 1)


def _counted(rows: JobQuerySet, limit: int) -> Prepared:
    """(number of the first `limit` rows, queue)."""
    return prepare_count(_by_index(rows).values_list("pk")[:limit], given=[_GIVEN])


def _by_index(rows: JobQuerySet) -> JobQuerySet:
    return vendor(rows.db).force_index(rows, INDEX)
