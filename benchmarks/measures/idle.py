"""(f) Statements and processor time of a worker that has been idle for a while."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import proc, workers
from benchmarks.bench import Bench, alternate
from benchmarks.fill import OURS, REFERENCE, empty
from benchmarks.stats import digits, spread


def run(bench: Bench) -> dict[str, Any]:
    """Measure worker and reference in turn."""
    found = alternate(
        {
            "jobqueue": lambda: _idle(bench, OURS, workers.runworker()),
            "raw": lambda: _idle(bench, REFERENCE, workers.reference()),
        },
        bench.plan.idle_rounds,
    )
    return {
        name: {
            "statements_per_s": spread([one["statements_per_s"] for one in rounds]),
            "cpu_percent": spread([one["cpu_percent"] for one in rounds]),
        }
        for name, rounds in found.items()
    }


def _idle(bench: Bench, table: str, command: list[str]) -> dict[str, Any]:
    empty(bench.target, bench.connection, table)
    seconds = bench.plan.idle_seconds
    with workers.running(command, bench.env) as (process,):
        time.sleep(bench.plan.idle_before_seconds)
        before, cpu, begun = bench.target.counters(bench.connection), proc.cpu_seconds(process.pid), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - begun
        used, after = proc.cpu_seconds(process.pid) - cpu, bench.target.counters(bench.connection)
    statements = None
    if before and after:
        # Without the two statements of this measure.
        statements = digits(max(0, after["statements"] - before["statements"] - 2) / took)
    return {"statements_per_s": statements, "cpu_percent": digits(100 * used / took)}
