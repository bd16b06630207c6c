"""All queues with what is set for them, and the counts of their jobs: for the command and the admin."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from jobqueue.base.validation import KEEP
from jobqueue.conf import load
from jobqueue.db.alias import explain_missing_table
from jobqueue.db.clock import read_now
from jobqueue.flow.rules import limits, paused
from jobqueue.gates.limits import knows, limits_at
from jobqueue.gates.rules import rules
from jobqueue.models import FlowRule, Worker
from jobqueue.stats.live import COUNTS, count_live
from jobqueue.transitions.claiming.candidates import queue_names
from jobqueue.worker.shared.queue_choice import Selection, stored_selection

#: counts are exact up to this
COUNT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue, or a task in it for which something is set."""

    queue: str
    task: str | None
    # The states of stats.QueueStats, each counted up to a bound; None for a task.
    ready: int | None
    scheduled: int | None
    held: int | None
    running: int | None
    failed: int | None
    oldest_age_seconds: float | None  # since the oldest ready job fell due; 0 if none is ready
    mode: str  # "", "paused" or "draining"
    reason: str
    by: str
    since: datetime | None
    until: datetime | None
    concurrency: int | tuple[int, int] | None  # (least, most): follows depth and trouble; None: no limit
    level: int | None  # the present limit where concurrency is (least, most)
    rate: str | None
    set_here: tuple[str, ...]  # which of "concurrency" and "rate" come from set_limit() and not from the settings
    max_ready: int | None  # producers are refused or delayed beyond so many READY jobs
    #: running workers that serve the queue and do not know its limit: it is partial while there are any
    unaware_workers: int

    @property
    def starts_nothing(self) -> bool:
        """Whether it is paused, or has a limit of 0."""
        return self.mode == FlowRule.Mode.PAUSED or self.has_limit_of_0

    @property
    def has_limit_of_0(self) -> bool:
        """Whether it is paused by a limit, whatever its mode."""
        return self.concurrency == 0 or self.rate == "0"


def known_names(*, using: str) -> list[str]:
    """All queues by name: of the table, of the settings, and those for which something is set."""
    with explain_missing_table(using):
        names = {*queue_names(using=using)}
        names |= {*FlowRule.objects.using(using).values_list("queue", flat=True)}
    return sorted(names | {*load().queues})


def queue_states(*, using: str, names: Collection[str] | None = None, most: int | None = None) -> list[QueueState]:
    """`names`, or all of known_names(), each followed by its tasks for which something is set.

    A few statements, with some index seeks and up to `most` (default COUNT_MAX) index entries for each count.
    """
    chosen = known_names(using=using) if names is None else sorted({*names})
    places = _Places(using, chosen, most)
    return [places.state(queue, task) for queue in chosen for task in [None, *places.tasks_of(queue)]]


def place_state(queue: str, task: str | None, *, using: str) -> QueueState:
    """A queue, or a task in it, whether something is set for it or not."""
    return _Places(using, [queue] if task is None else []).state(queue, task)


class _Places:
    """What is set at the moment, how many jobs of `queues` wait and run, and which workers know limits."""

    def __init__(self, using: str, queues: Sequence[str], most: int | None = None) -> None:
        self._using = using
        self._live = count_live(queues, using, lambda: None, most or COUNT_MAX)
        self._now = read_now(using)
        self._pauses = {(one.queue, one.task): one for one in paused(using=using)}
        self._limits = {(one.queue, one.task): one for one in limits(using=using)}
        self._workers = running_workers(using)

    def tasks_of(self, queue: str) -> list[str]:
        """The tasks of a queue for which something is set."""
        return sorted({task for name, task in [*self._pauses, *self._limits] if name == queue and task is not None})

    def state(self, queue: str, task: str | None) -> QueueState:
        pause, limit = self._pauses.get((queue, task)), self._limits.get((queue, task))
        own = load().queues.get(queue) if task is None else None
        concurrency, rate = (own.concurrency, own.rate) if own else (None, None)
        # Settings that come from JSON have a list.
        concurrency = tuple(concurrency) if isinstance(concurrency, list) else concurrency
        set_here = []
        if limit is not None and limit.concurrency is not KEEP:
            set_here, concurrency = ["concurrency"], limit.concurrency
        if limit is not None and limit.rate is not KEEP:
            set_here, rate = [*set_here, "rate"], limit.rate
        is_limited = pause is not None or concurrency is not None or rate is not None
        unaware = count_unaware(self._workers, queue, task, set_here=limit is not None) if is_limited else 0
        counts: dict[str, Any] = {name: getattr(self._live[queue], name) if task is None else None for name in COUNTS}
        present = limits_at(queue, rules(self._using)).most if isinstance(concurrency, tuple) else None
        return QueueState(
            queue=queue,
            task=task,
            **counts,
            oldest_age_seconds=self._live[queue].age_seconds(self._now) if task is None else None,
            mode=pause.mode if pause else "",
            reason=pause.reason if pause else "",
            by=pause.by if pause else "",
            since=pause.since if pause else None,
            until=pause.until if pause else None,
            concurrency=concurrency,
            level=present,
            rate=rate,
            set_here=tuple(set_here),
            max_ready=own.max_ready if own else None,
            unaware_workers=unaware,
        )


class Running(NamedTuple):
    """So many running workers that serve the same queues and have announced the same limits."""

    number: int
    selection: Selection
    announced: Any

    def serves(self, queue: str) -> bool:
        return self.selection.serves(queue)


def running_workers(using: str) -> list[Running]:
    """The running workers, those that are alike together."""
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True)
    with explain_missing_table(using):
        found = list(rows.values_list("queues", "gates"))
    alike = Counter((queues, json.dumps(gates, sort_keys=True)) for queues, gates in found)
    return [Running(number, stored_selection(queues), json.loads(gates)) for (queues, gates), number in alike.items()]


def count_unaware(workers: list[Running], queue: str, task: str | None, *, set_here: bool) -> int:
    """How many of `workers` serve `queue` and do not know its limit, or that of a task in it.

    Limits set at run time are known to every worker that supports limits.
    """
    return sum(
        worker.number
        for worker in workers
        if worker.serves(queue) and (worker.announced is None if set_here else not knows(worker.announced, queue, task))
    )
