"""How many jobs of each queue wait, run and have failed: index entries, counted up to a cap, in few statements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Protocol

from jobqueue.base.validation import check_queue
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import Selected, UtcNow, read_now
from jobqueue.db.expressions import Slot, Unestimated, UnestimatedSlot
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_count
from jobqueue.db.time_limit import time_limit
from jobqueue.gates.backlog import INDEX, Level, ranks
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE, JobQuerySet
from jobqueue.models.states import WAITING
from jobqueue.ordering import KEY_GATE
from jobqueue.stats.history import Recent, recent
from jobqueue.transitions.claiming.candidates import NAMES_MAX, queue_names

#: counts are exact up to this
COUNT_MAX = 10_000
COUNTS = ("ready", "scheduled", "held", "running", "failed")
#: queues that are counted together; of more, one portion after the other
PORTION = 500
#: priorities of one queue and gate that are looked at, the highest first
LEVELS_MAX = 100
#: models.states by gate: where due jobs are ready and others scheduled, and where all have one state
READY_GATES = (0, KEY_GATE, FLOW_GATE)
STATE_OF_GATE = {PARENTS_GATE: "scheduled", HELD_GATE: "held"}
#: an earlier job of its key; a limit, pause or breaker; its parents in a workflow
HELD_BACK_GATES = (KEY_GATE, FLOW_GATE, PARENTS_GATE)


@dataclass(slots=True)
class Live:
    """The jobs of one queue that have not ended, and the failed ones; each count is exact up to a bound."""

    ready: int = 0
    scheduled: int = 0
    held: int = 0
    running: int = 0
    failed: int = 0
    oldest_run_at: datetime | None = None  # of the ready ones
    capped: bool = False  # one of the counts, at least, is more

    def age_seconds(self, now: datetime) -> float:
        """How long ago the oldest ready job fell due; 0 if none is ready."""
        return 0.0 if self.oldest_run_at is None else max(0.0, (now - self.oldest_run_at).total_seconds())

    def cap(self, most: int) -> None:
        """Bound the counts."""
        self.capped = self.capped or any(getattr(self, name) > most for name in COUNTS)
        for name in COUNTS:
            setattr(self, name, min(most, getattr(self, name)))


class Counted(Protocol):
    """What has the counts of a queue."""

    @property
    def capped(self) -> bool:
        """Whether one of the counts, at least, is more."""


def is_at_least(counts: Counted, state: str, most: int) -> bool:
    """Whether the queue may have more jobs in this state than counts, which stopped at `most`, say."""
    if not counts.capped:
        return False
    # Where no count has reached its end, the queue has more than LEVELS_MAX priorities.
    of_levels = state in WAITING and max(getattr(counts, name) for name in COUNTS) < most
    return of_levels or bool(getattr(counts, state) >= most)


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
    most = COUNT_MAX if most is None else most
    if len(queues) <= PORTION:
        return _count_portion(queues, using, check, most, only, None)
    found: dict[str, Live] = {}
    ordered = sorted(queues)
    for start in range(0, len(ordered), PORTION):
        some = ordered[start : start + PORTION]
        found |= _count_portion(some, using, check, most, only, (some[0], some[-1]))
    return found


def _count_portion(
    queues: Sequence[str],
    using: str,
    check: Callable[[], None],
    most: int,
    only: Collection[str],
    within: tuple[str, str] | None,
) -> dict[str, Live]:
    """Those of up to PORTION queues. `within`: the first and the last of them, if they are not all queues."""
    found = {queue: Live() for queue in queues}
    check()
    gates = [*READY_GATES, *(gate for gate, state in STATE_OF_GATE.items() if state in only)]
    for rank, levels in enumerate(
        ranks([(queue, Job.Status.READY, gate) for queue in queues for gate in gates], using, within)
    ):
        if rank == LEVELS_MAX:
            for level in levels:
                found[level.queue].capped = True
            break
        _count_waiting(found, levels, using, check, most)
        if "scheduled" in only:
            _count_not_due(found, levels, using, check, most)
        _count_of_gates(found, levels, using, check, most)
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


def _count_not_due(
    found: dict[str, Live], levels: Sequence[Level], using: str, check: Callable[[], None], most: int
) -> None:
    """Add the jobs of `levels` that wait for their time."""
    check()
    later = [level for level in levels if level.gate in READY_GATES and found[level.queue].scheduled <= most]
    for count, queue in _not_due(using, most).seek_each([level._asdict() for level in later], 20):
        if count:
            found[queue].scheduled += count


def _count_of_gates(
    found: dict[str, Live], levels: Sequence[Level], using: str, check: Callable[[], None], most: int
) -> None:
    """Add the jobs of `levels` that are at gates where all jobs have one state."""
    check()
    there = [level for level in levels if level.gate in STATE_OF_GATE]
    few = [level for level in there if getattr(found[level.queue], STATE_OF_GATE[level.gate]) <= most]
    for count, queue, gate in _any_time(using, most).seek_each([level._asdict() for level in few], 20):
        if count:
            live, state = found[queue], STATE_OF_GATE[int(gate)]
            setattr(live, state, getattr(live, state) + count)


_QUEUE, _GIVEN = UnestimatedSlot("queue", NameField()), Slot("queue", NameField())
_GATE = Slot("gate", Job._meta.get_field("gate"))


def _waiting(using: str) -> JobQuerySet:
    """The READY jobs of one level, in index order."""
    rows = Job.objects.using(using).filter(
        queue=_QUEUE,
        status=Unestimated(Job.Status.READY),
        gate=_GATE,
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
    return _counted(_waiting(using), most + 1, _GATE)


@cache
def _of_status(using: str, most: int) -> Prepared:
    status = UnestimatedSlot("status", Job._meta.get_field("status"))
    rows = Job.objects.using(using).filter(queue=_QUEUE, status=status)
    # In the order of the index: PostgreSQL could take a walk through the table for cheaper.
    return _counted(rows.order_by("gate", "priority", "run_at", "id"), most + 1)


def _counted(rows: JobQuerySet, limit: int, *given: Slot) -> Prepared:
    """(number of the first `limit` rows, queue, what else is given by the run)."""
    return prepare_count(_by_index(rows).values_list("pk")[:limit], given=[_GIVEN, *given])


def _by_index(rows: JobQuerySet) -> JobQuerySet:
    return vendor(rows.db).force_index(rows, INDEX)


def count_held_back(
    queues: Sequence[str], using: str, check: Callable[[], None], most: int
) -> dict[str, dict[int, int]]:
    """By queue and gate, of HELD_BACK_GATES, how many jobs wait behind it, up to `most`; what has none is not in it.

    check() is called between statements; it may raise. An index seek for each queue and gate, and an index entry for
    each job that is counted.
    """
    check()
    tops = next(ranks([(queue, Job.Status.READY, gate) for queue in queues for gate in HELD_BACK_GATES], using), [])
    check()
    found: dict[str, dict[int, int]] = {}
    runs = [{"queue": top.queue, "gate": top.gate} for top in tops]
    for count, queue, gate in _behind(using, most).seek_each(runs, 20):
        if count:
            found.setdefault(queue, {})[int(gate)] = int(count)
    return found


@cache
def _behind(using: str, most: int) -> Prepared:
    rows = Job.objects.using(using).filter(queue=_QUEUE, status=Unestimated(Job.Status.READY), gate=_GATE)
    # In the order of the index: PostgreSQL could take a walk through the table for cheaper.
    return _counted(rows.order_by("priority", "run_at", "id"), most, _GATE)


#: how long a snapshot may take
READ_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The figures of one queue. Counts are exact to 10,000; one above is 10,000, and `capped` is True."""

    queue: str
    ready: int  # due; also those that wait for their key or a limit, and those of a paused queue
    scheduled: int  # not due yet, or waiting for their parents
    held: int  # waiting for a person, after a crash
    running: int
    failed: int
    oldest_age_seconds: float  # since the oldest ready job fell due; 0 if none is ready
    throughput_per_minute: float  # jobs that ended DONE or FAILED, in the last five minutes
    dead_per_hour: int  # jobs that ended FAILED in the last hour
    error_rate: float  # share of the runs of the last five minutes that failed or were lost; 0 if none ended
    capped: bool


def snapshot(*, queue: str | None = None, using: str | None = None) -> list[QueueStats]:
    """The figures of every queue that has jobs, by name, or of `queue` alone.

    The cost does not grow with the table: index entries up to the cap for what waits and runs, rows of statistics for
    what ended, which workers write every ten seconds. Raises InvalidValue and InvalidType for a name that no queue can
    have, and StatementTimeout after READ_SECONDS, for which some thousands of queues may be too many; the caller's
    transaction stays usable.
    """
    alias = alias_of(using)
    if queue is not None:
        return figures([check_queue(queue)], everywhere=False, using=alias)
    return figures((), everywhere=True, using=alias)


def figures(
    queues: Iterable[str],
    *,
    everywhere: bool,
    using: str,
    most: Callable[[int], int] | None = None,
    seconds: float | None = None,
    first: int = NAMES_MAX,
) -> list[QueueStats]:
    """As snapshot(): the figures of `queues`, which may have no jobs, and with `everywhere` of those that have some.

    Counts are exact to COUNT_MAX, or to what most() gives for the number of queues. Raises StatementTimeout after
    `seconds`, or READ_SECONDS. `first`: only so many of those that have jobs, by name.
    """
    named = {*queues}
    with explain_missing_table(using), time_limit(seconds or READ_SECONDS, using=using) as limit:
        chosen = named | {*queue_names(using=using, limit=first)} if everywhere else named
        now = read_now(using)
        live = count_live(sorted(chosen), using, limit.check, most(len(chosen)) if most else None)
        ended = recent(now, using, None if everywhere else sorted(named))
    return [_stats(name, live[name], ended.get(name, Recent()), now) for name in sorted(chosen)]


def _stats(queue: str, live: Live, ended: Recent, now: datetime) -> QueueStats:
    return QueueStats(
        queue=queue,
        ready=live.ready,
        scheduled=live.scheduled,
        held=live.held,
        running=live.running,
        failed=live.failed,
        oldest_age_seconds=live.age_seconds(now),
        throughput_per_minute=ended.throughput_per_minute,
        dead_per_hour=ended.dead_per_hour,
        error_rate=ended.error_rate,
        capped=live.capped,
    )
