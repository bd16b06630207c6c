"""jobs workers: list the workers that run, with their last heartbeats and the jobs that they hold."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue.cli.arguments import add_database, add_json, count
from jobqueue.cli.dead_letters import instant
from jobqueue.cli.tables import aligned
from jobqueue.cli.watch import add_watch, repeat
from jobqueue.durations import format_seconds
from jobqueue.log_format import one_line
from jobqueue.maintenance.worker_list import HeldJob, ListedWorker, listed

_HEAD = ("worker", "pid", "state", "jobs", "oldest", "heartbeat", "threads", "queues")
_NUMBERS = (1, 3, 4, 5, 6)


def declare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--all", action="store_true", help="also workers that have stopped, and why")
    add("--jobs", action="store_true", help="also the jobs that each worker holds")
    add("--limit", type=count(1000), default=100, metavar="N", help="number of workers (default 100); with --all twice")
    add_watch(parser)
    add_json(parser, "print one JSON object; with --watch one in each line")
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    def show(block: OutputWrapper) -> int:
        # One more than is shown tells whether there are others.
        found = listed(limit=given["limit"] + 1, stopped=given["all"], using=using)
        _tell(block, given, found)
        return 0

    return repeat(show, out, using, given, words=f"workers of {using}")


def _tell(out: OutputWrapper, given: dict[str, Any], found: list[ListedWorker]) -> None:
    shown = [*_first(found, given["limit"], stopped=False), *_first(found, given["limit"], stopped=True)]
    if given["json"]:
        facts = [_facts(one, jobs=given["jobs"]) for one in shown]
        out.write(json.dumps({"version": 1, "workers": facts, "complete": len(shown) == len(found)}))
    elif given["verbosity"] > 0:
        for line in _lines(shown, jobs=given["jobs"]):
            out.write(line)
        if not shown:
            out.write("no worker has run" if given["all"] else "no worker runs; --all lists those that have stopped")
        if len(shown) < len(found):
            out.write("there are more: pass a larger --limit")


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
        yield one_line(f"supervisor {supervisor_pid} on {host}, boot id {boot_id}")
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
    return one_line("  ".join([f"    #{job.id}", job.queue, job.task or "(handler)", *times]))


def _facts(one: ListedWorker, *, jobs: bool) -> dict[str, Any]:
    facts = {name: instant(value) for name, value in asdict(one).items() if name != "held"}
    if jobs:
        facts["held"] = [{name: instant(value) for name, value in asdict(job).items()} for job in one.held]
    return facts
