"""jobs bench: measure how fast jobs are enqueued, claimed and acked, in a queue of their own that is removed."""

from __future__ import annotations

import json
import signal
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue.cli.arguments import NO_SUCH_ID, add_database, add_json, count, duration
from jobqueue.cli.measuring import Bench, Measured
from jobqueue.cli.tables import aligned
from jobqueue.durations import format_seconds
from jobqueue.log_format import count_of

SECONDS_MAX = 600.0
_HEAD = ("verb", "batch", "calls", "jobs", "jobs/s", "p50", "p99")


def _seconds(text: str) -> float:
    found = duration(text)
    if found > SECONDS_MAX:
        raise ArgumentTypeError(f"{text[:20]!r} is too long: a benchmark runs at most {format_seconds(SECONDS_MAX)}")
    return found


def declare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--seconds", type=_seconds, default=10.0, metavar="TIME", help="how long it measures (default 10s)")
    add("--jobs", type=count(1_000_000), default=None, metavar="N", help="end each of its two rounds after N jobs")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    """Measure and print; 1 if it was interrupted, with what was measured until then."""
    bench, is_complete = Bench(using, seconds=given["seconds"], jobs=given["jobs"]), True
    shows = given["verbosity"] > 0 and not given["json"] and sys.stderr.isatty()
    if shows:
        sys.stderr.write(f"measuring for {format_seconds(given['seconds'])} ...")
        sys.stderr.flush()
    try:
        with _interrupted_by_sigterm():
            bench.run()
    except KeyboardInterrupt:
        is_complete = False
    finally:
        if shows:
            sys.stderr.write("\r\x1b[K")
    if given["json"]:
        facts = {"version": 1, "complete": is_complete, "left_over": bench.left_over}
        out.write(json.dumps({**facts, "measured": [_facts(one) for one in bench.measured]}))
    elif given["verbosity"] > 0:
        for line in aligned([_HEAD, *map(_row, bench.measured)], numbers=range(1, len(_HEAD))):
            out.write(line)
        if bench.left_over:
            out.write(f"{count_of(bench.left_over, 'job')} of an earlier bench that was killed: removed")
    if not is_complete:
        sys.stderr.write("it was interrupted\n")
    if not bench.is_clean:
        sys.stderr.write("some of its jobs are locked, or it was interrupted again: the next bench removes them\n")
    return 0 if is_complete else NO_SUCH_ID


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM do in the block what Ctrl-C does. Only the main thread may set that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _facts(one: Measured) -> dict[str, Any]:
    rounded = {f"p{round(share * 100)}_seconds": one.percentile(share) for share in (0.5, 0.99)}
    facts = {"verb": one.verb, "batch": one.batch, "calls": len(one.seconds), "jobs": one.jobs}
    return facts | {"jobs_per_second": round(one.jobs_per_second, 1)} | rounded


def _row(one: Measured) -> tuple[str, ...]:
    times = [one.percentile(share) for share in (0.5, 0.99)]
    shown = ["-" if seconds is None else f"{seconds * 1000:.2f}ms" for seconds in times]
    counts = (str(one.batch), str(len(one.seconds)), str(one.jobs), f"{one.jobs_per_second:.0f}")
    return (one.verb, *counts, *shown)
