"""Sub-commands that watch over the queue: stats counts jobs, alarms lists alarms that fire, workers those that run."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from jobqueue.alarms import RUNBOOKS, Alarm, firing
from jobqueue.alarms.delivery import facts
from jobqueue.alarms.looking import is_stale, last_look_seconds
from jobqueue.base.durations import format_seconds
from jobqueue.cli.arguments import count
from jobqueue.cli.output import Result, Subcommand, aligned
from jobqueue.conf import load
from jobqueue.explain.explanation import span
from jobqueue.maintenance.worker_rows import HeldJob, ListedWorker, listed
from jobqueue.stats import QueueStats, snapshot
from jobqueue.stats.live import COUNT_MAX, COUNTS, is_at_least

_HEAD_OF_WORKERS = ("worker", "pid", "state", "jobs", "oldest", "heartbeat", "threads", "queues")
_NUMBERS = (1, 3, 4, 5, 6)


def _declare_workers(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--all", action="store_true", help="also workers that have stopped, and why")
    add("--jobs", action="store_true", help="also the jobs that each worker holds")
    add("--limit", type=count(1000), default=100, metavar="N", help="number of workers (default 100); with --all twice")


def _workers(using: str, given: dict[str, Any]) -> Result:
    # One more than is shown tells whether there are others.
    found = listed(limit=given["limit"] + 1, stopped=given["all"], using=using)
    shown = [*_first(found, given["limit"], stopped=False), *_first(found, given["limit"], stopped=True)]
    lines = [*_worker_lines(shown, jobs=given["jobs"])]
    if not shown:
        lines.append("no worker has run" if given["all"] else "no worker runs; --all lists those that have stopped")
    if len(shown) < len(found):
        lines.append("there are more; pass a larger --limit")
    facts = [_facts(one, jobs=given["jobs"]) for one in shown]
    return Result({"workers": facts, "complete": len(shown) == len(found)}, lines)


def _first(found: Iterable[ListedWorker], limit: int, *, stopped: bool) -> list[ListedWorker]:
    return [one for one in found if (one.state == "stopped") == stopped][:limit]


def _worker_lines(shown: list[ListedWorker], *, jobs: bool) -> Iterator[str]:
    """The commands, each with its processes, and below these their jobs."""
    if not shown:
        return
    head, *rows = aligned([_HEAD_OF_WORKERS, *map(_row_of_worker, shown)], numbers=_NUMBERS)
    yield head
    lines = iter(rows)
    for (host, supervisor_pid, boot_id), own in groupby(shown, lambda one: (one.host, one.supervisor_pid, one.boot_id)):
        yield f"supervisor {supervisor_pid} on {host}, boot id {boot_id}"
        for worker in own:
            yield next(lines)
            for job in worker.held if jobs else ():
                yield _job(job)


def _row_of_worker(one: ListedWorker) -> tuple[str, ...]:
    state = f"stopped: {one.stop_reason or '-'}" if one.state == "stopped" else one.state
    oldest = "-" if one.oldest_job_age_seconds is None else format_seconds(one.oldest_job_age_seconds)
    jobs = f"{one.jobs}+" if one.jobs_capped else str(one.jobs)
    heartbeat = format_seconds(one.heartbeat_age_seconds)
    return (f"  {one.name}", str(one.pid), state, jobs, oldest, heartbeat, str(one.concurrency), one.queues)


def _job(job: HeldJob) -> str:
    times = [f"{word} {at:%Y-%m-%d %H:%M:%S}" for word, at in (("since", job.since), ("until", job.lease_until)) if at]
    return "  ".join([f"    #{job.id}", job.queue, job.task or "(handler)", *times])


def _facts(one: ListedWorker, *, jobs: bool) -> dict[str, Any]:
    facts = asdict(one)
    held = facts.pop("held")
    return facts | {"held": held} if jobs else facts


WORKERS = Subcommand(
    "List the workers that run, with their last heartbeats and the jobs that they hold.",
    _declare_workers,
    _workers,
    watched="workers of {}",
)


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
    """A line for each queue with what waits and runs now, as `jobs` alone prints it."""
    return _table(snapshot(using=using), columns=_SUMMARY)


def _table(found: list[QueueStats], columns: int = len(_HEAD)) -> Iterator[str]:
    if not found:
        yield "no queue has jobs"
        return
    rows = [row[:columns] for row in (_HEAD, *map(_row, found))]
    yield from aligned(rows, numbers=range(1, columns))


def _row(stats: QueueStats) -> tuple[str, ...]:
    counts = [f"{getattr(stats, state):,}{'+' if is_at_least(stats, state, COUNT_MAX) else ''}" for state in COUNTS]
    oldest = span(stats.oldest_age_seconds) if stats.ready else "-"
    rates = f"{stats.throughput_per_minute:,.1f}", f"{stats.dead_per_hour:,}", f"{100 * stats.error_rate:.1f} %"
    return (stats.queue, *counts, oldest, *rates)


def _alarms(using: str, given: dict[str, Any]) -> Result:
    found, age = firing(using=using), last_look_seconds(using=using)
    listed = [{name: value for name, value in facts(one).items() if name not in _OF_ENDS} for one in found]
    status = FIRING if found or is_stale(age) else 0
    return Result({"alarms": listed, "last_look_seconds": age}, _lines(found, age), status)


def _lines(found: list[Alarm], age: float | None) -> Iterator[str]:
    if not load().alarms.watches:
        yield "JOBQUEUE['ALARMS'] has no thresholds: nothing is checked"
    elif age is None:
        yield "the alarms were never checked: workers without --no-reaper do it, and so does reap_leases"
    elif is_stale(age):
        yield f"last checked {format_seconds(age)} ago: no worker without --no-reaper seems to be running"
    if found:
        yield from aligned([_HEAD_OF_ALARMS, *map(_row_of_alarm, found)], numbers=(2, 3))
    else:
        yield "whether any alarm fires is unknown" if is_stale(age) else "no alarm fires"


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
