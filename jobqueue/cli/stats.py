"""Sub-commands that watch over the queue: stats counts jobs by queue, and alarms lists the alarms that fire."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from jobqueue.alarms import Alarm, firing
from jobqueue.alarms.alarm import RUNBOOKS
from jobqueue.alarms.delivery import facts
from jobqueue.alarms.looking import is_stale, last_look_seconds
from jobqueue.cli.output import Result, Subcommand, aligned
from jobqueue.conf import load
from jobqueue.durations import format_seconds
from jobqueue.explain.explanation import span
from jobqueue.stats import QueueStats, snapshot
from jobqueue.stats.live import COUNT_MAX, COUNTS, is_at_least

#: columns of the table: of `jobs` alone the first ones
_SUMMARY = 7
_HEAD = ("queue", *COUNTS, "oldest", "per minute", "dead per hour", "errors")
#: exit status while an alarm fires, or nobody would notice it
FIRING = 1
_HEAD_OF_ALARMS = ("queue", "alarm", "value", "threshold", "since", "about", "runbook")
#: keys that only alarms of the past have
_OF_ENDS = ("state", "ended_at")


def _declare_stats(parser: ArgumentParser) -> None:
    parser.add_argument("--queue", default=None, metavar="NAME", help="only this queue")


def _stats(using: str, given: dict[str, Any]) -> Result:
    found = snapshot(queue=given["queue"], using=using)
    return Result({"queues": list(map(asdict, found))}, _table(found))


def summary(using: str) -> Iterator[str]:
    """What waits and runs now, a line for each queue: what `jobs` alone prints."""
    return _table(snapshot(using=using), columns=_SUMMARY)


def _table(found: list[QueueStats], columns: int = len(_HEAD)) -> Iterator[str]:
    if not found:
        yield "no queue has jobs"
        return
    rows = [row[:columns] for row in (_HEAD, *map(_row, found))]
    yield from aligned(rows, numbers=range(1, columns))


def _row(stats: QueueStats) -> tuple[str, ...]:
    counts = [_count(stats, state) for state in COUNTS]
    oldest = span(stats.oldest_age_seconds) if stats.ready else "-"
    rates = f"{stats.throughput_per_minute:,.1f}", f"{stats.dead_per_hour:,}", f"{100 * stats.error_rate:.1f} %"
    return (stats.queue, *counts, oldest, *rates)


def _count(stats: QueueStats, state: str) -> str:
    return f"{getattr(stats, state):,}{'+' if is_at_least(stats, state, COUNT_MAX) else ''}"


def _alarms(using: str, given: dict[str, Any]) -> Result:
    found, age = firing(using=using), last_look_seconds(using=using)
    listed = [{name: value for name, value in facts(one).items() if name not in _OF_ENDS} for one in found]
    status = FIRING if found or is_stale(age) else 0
    return Result({"alarms": listed, "last_look_seconds": age}, _lines(found, age), status)


def _lines(found: list[Alarm], age: float | None) -> Iterator[str]:
    if not load().alarms.watches:
        yield "JOBQUEUE['ALARMS'] has no thresholds: nobody looks"
    elif age is None:
        yield "nobody has looked yet: a worker without --no-reaper does, and reap_leases"
    elif is_stale(age):
        yield f"the last look was {format_seconds(age)} ago: no worker without --no-reaper seems to run"
    if found:
        yield from aligned([_HEAD_OF_ALARMS, *map(_row_of_alarm, found)], numbers=(2, 3))
    else:
        yield "it is not known whether an alarm fires" if is_stale(age) else "no alarm fires"


def _row_of_alarm(alarm: Alarm) -> tuple[str, ...]:
    since = f"{alarm.since:%Y-%m-%d %H:%M:%S}"
    figures = f"{alarm.value:,g}", f"{alarm.threshold:,g}"
    return (alarm.queue or "(workers)", alarm.name, *figures, since, alarm.names or "-", RUNBOOKS[alarm.name])


STATS = Subcommand(
    "Print for each queue how many jobs wait, run and have failed, and what ended lately.",
    _declare_stats,
    _stats,
    watched="queues of {}",
)
ALARMS = Subcommand(
    "List the alarms that fire; exit status 1 if there is one, or if nobody looks.",
    None,
    _alarms,
    watched="alarms of {}",
)
