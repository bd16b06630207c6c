"""The figures of each queue: what waits and runs now, and what ended lately."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.clock import read_now
from jobqueue.db.time_limit import time_limit
from jobqueue.stats.history import Recent, recent
from jobqueue.stats.live import Live, count_live
from jobqueue.transitions.claiming.candidates import NAMES_MAX, queue_names
from jobqueue.validation import check_queue

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
