"""The sub-command workers: list the workers that run, with their last heartbeats and the jobs that they hold."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from jobqueue.cli.arguments import count
from jobqueue.cli.output import Result, Subcommand, aligned
from jobqueue.durations import format_seconds
from jobqueue.maintenance.worker_list import HeldJob, ListedWorker, listed

_HEAD = ("worker", "pid", "state", "jobs", "oldest", "heartbeat", "threads", "queues")
_NUMBERS = (1, 3, 4, 5, 6)


def _declare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--all", action="store_true", help="also workers that have stopped, and why")
    add("--jobs", action="store_true", help="also the jobs that each worker holds")
    add("--limit", type=count(1000), default=100, metavar="N", help="number of workers (default 100); with --all twice")


def _workers(using: str, given: dict[str, Any]) -> Result:
    # One more than is shown tells whether there are others.
    found = listed(limit=given["limit"] + 1, stopped=given["all"], using=using)
    shown = [*_first(found, given["limit"], stopped=False), *_first(found, given["limit"], stopped=True)]
    lines = [*_lines(shown, jobs=given["jobs"])]
    if not shown:
        lines.append("no worker has run" if given["all"] else "no worker runs; --all lists those that have stopped")
    if len(shown) < len(found):
        lines.append("there are more: pass a larger --limit")
    facts = [_facts(one, jobs=given["jobs"]) for one in shown]
    return Result({"workers": facts, "complete": len(shown) == len(found)}, lines)


def _first(found: Iterable[ListedWorker], limit: int, *, stopped: bool) -> list[ListedWorker]:
    return [one for one in found if (one.state == "stopped") == stopped][:limit]


def _lines(shown: list[ListedWorker], *, jobs: bool) -> Iterator[str]:
    """The commands, each with its processes, and below these their jobs."""
    if not shown:
        return
    head, *rows = aligned([_HEAD, *map(_row, shown)], numbers=_NUMBERS)
    yield head
    lines = iter(rows)
    for (host, supervisor_pid, boot_id), own in groupby(shown, lambda one: (one.host, one.supervisor_pid, one.boot_id)):
        yield f"supervisor {supervisor_pid} on {host}, boot id {boot_id}"
        for worker in own:
            yield next(lines)
            for job in worker.held if jobs else ():
                yield _job(job)


def _row(one: ListedWorker) -> tuple[str, ...]:
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
    _declare,
    _workers,
    watched="workers of {}",
)
