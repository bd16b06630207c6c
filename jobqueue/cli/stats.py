"""jobs stats: print for each queue how many jobs wait, run and have failed, and what ended lately."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue.cli.arguments import add_database, add_json
from jobqueue.cli.tables import aligned
from jobqueue.cli.watch import add_watch, repeat
from jobqueue.explain.explanation import span
from jobqueue.stats import QueueStats, snapshot
from jobqueue.stats.live import COUNT_MAX, COUNTS, is_at_least

#: columns of the table: of `jobs` alone the first ones
_SUMMARY = 7
_HEAD = ("queue", *COUNTS, "oldest", "per minute", "dead per hour", "errors")


def declare(parser: ArgumentParser) -> None:
    parser.add_argument("--queue", default=None, metavar="NAME", help="only this queue")
    add_watch(parser)
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    def show(out: OutputWrapper) -> int:
        found = snapshot(queue=given["queue"], using=using)
        if given["json"]:
            out.write(json.dumps({"version": 1, "queues": list(map(asdict, found))}))
        elif given["verbosity"] > 0:
            _write_table(out, found)
        return 0

    return repeat(show, out, using, given, words=f"queues of {using}")


def summarize(out: OutputWrapper, using: str) -> None:
    """Write what waits and runs now, a line for each queue: what `jobs` alone prints."""
    _write_table(out, snapshot(using=using), columns=_SUMMARY)


def _write_table(out: OutputWrapper, found: list[QueueStats], columns: int = len(_HEAD)) -> None:
    if not found:
        out.write("no queue has jobs")
        return
    rows = [row[:columns] for row in (_HEAD, *map(_row, found))]
    for line in aligned(rows, numbers=range(1, columns)):
        out.write(line)


def _row(stats: QueueStats) -> tuple[str, ...]:
    counts = [_count(stats, state) for state in COUNTS]
    oldest = span(stats.oldest_age_seconds) if stats.ready else "-"
    rates = f"{stats.throughput_per_minute:,.1f}", f"{stats.dead_per_hour:,}", f"{100 * stats.error_rate:.1f} %"
    return (stats.queue, *counts, oldest, *rates)


def _count(stats: QueueStats, state: str) -> str:
    return f"{getattr(stats, state):,}{'+' if is_at_least(stats, state, COUNT_MAX) else ''}"
