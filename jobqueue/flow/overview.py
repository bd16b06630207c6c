"""All queues with what is set for them, and how many of their jobs wait and run: for the command and the admin."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobqueue.conf import load
from jobqueue.db.alias import explain_missing_table
from jobqueue.flow.controls import Paused, paused
from jobqueue.flow.limiting import KEEP, Limit, limits
from jobqueue.flow.unaware import count_unaware, running_workers
from jobqueue.gates.backlog import due_count
from jobqueue.gates.whole_queues import running
from jobqueue.transitions.claiming.candidates import queue_names

#: counts are exact up to this
COUNT_MAX = 10_000
QUEUES_MAX = 500


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue, or a task in it for which something is set."""

    queue: str
    task: str | None
    ready: int | None  # due, counted up to COUNT_MAX; None for a task
    running: int | None
    mode: str  # "", "paused" or "draining"
    reason: str
    by: str
    since: datetime | None
    until: datetime | None
    concurrency: str  # as text: "5", "2 to 8", or "" for no limit
    rate: str
    set_here: bool  # whether a limit comes from set_limit() and not from the settings
    #: running workers that serve the queue and do not know its limit: it is partial while there are any
    unaware_workers: int


def queue_states(*, using: str, name: str | None = None) -> list[QueueState]:
    """Up to QUEUES_MAX queues in the order of their names, each followed by its tasks for which something is set.

    Queues of the table, of the settings, and those for which an operator has set something.
    """
    with explain_missing_table(using):
        names = {*queue_names(using=using, limit=QUEUES_MAX)} if name is None else {name}
    pauses = {(one.queue, one.task): one for one in paused(using=using)}
    set_limits = {(one.queue, one.task): one for one in limits(using=using)}
    places = {*pauses, *set_limits}
    if name is None:
        names |= {*load().queues, *(queue for queue, _ in places)}
    workers = running_workers(using)
    found = []
    for queue in sorted(names)[:QUEUES_MAX]:
        for task in [None, *sorted(task for place, task in places if place == queue and task is not None)]:
            place = queue, task
            limit = set_limits.get(place)
            unaware = count_unaware(workers, queue, task, set_here=limit is not None)
            found.append(_state(queue, task, pauses.get(place), limit, unaware, using))
    return found


def _state(
    queue: str, task: str | None, pause: Paused | None, limit: Limit | None, unaware: int, using: str
) -> QueueState:
    concurrency, rate = _limits_of(queue if task is None else None, limit)
    return QueueState(
        queue,
        task,
        due_count(queue, COUNT_MAX, using) if task is None else None,
        running(queue, COUNT_MAX, using) if task is None else None,
        pause.mode if pause else "",
        pause.reason if pause else "",
        pause.by if pause else "",
        pause.since if pause else None,
        pause.until if pause else None,
        concurrency,
        rate,
        limit is not None,
        unaware if pause or concurrency or rate else 0,
    )


def _limits_of(queue: str | None, limit: Limit | None) -> tuple[str, str]:
    own = load().queues.get(queue) if queue is not None else None
    most, rate = (own.concurrency, own.rate) if own else (None, None)
    texts = [" to ".join(map(str, most)) if isinstance(most, (tuple, list)) else _text(most), _text(rate)]
    if limit is not None:
        texts[0] = texts[0] if limit.concurrency is KEEP else _text(limit.concurrency)
        texts[1] = texts[1] if limit.rate is KEEP else _text(limit.rate)
    return texts[0], texts[1]


def _text(value: object) -> str:
    return "" if value is None else str(value)
