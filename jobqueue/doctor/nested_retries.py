"""How far retries multiply: what the workers have counted. W031 names the libraries that can be seen in the code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from jobqueue.conf import load
from jobqueue.doctor.finding import Finding, Level
from jobqueue.explain.workers import WORKERS_MAX
from jobqueue.maintenance.worker_rows import alive
from jobqueue.payload import JSON

#: calls in one attempt of a task, on average, and the attempts without which the figure says nothing
CALLS_MAX, RUNS_MIN = 2.0, 20
SHOWN = 10


def nested_retries(using: str) -> Iterator[Finding]:
    """Check retries_multiply."""
    rows = alive(load().worker_silent_seconds, using=using).filter(retries__isnull=False)
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for counts in rows.values_list("retries", flat=True)[:WORKERS_MAX]:
        for one in counts if isinstance(counts, list) else []:
            _add(sums, one)
    many = {
        task: sum_of for task, sum_of in sums.items() if sum_of[0] >= RUNS_MIN and sum_of[1] > CALLS_MAX * sum_of[0]
    }
    for task, (runs, calls) in sorted(many.items())[:SHOWN]:
        evidence: dict[str, JSON] = {"task": task, "attempts": runs, "calls": calls}
        yield Finding(
            Level.WARNING,
            "retries_multiply",
            f"An attempt of task {task} makes {calls / runs:.1f} calls on average. If a library repeats calls inside "
            "an attempt, each attempt of the task multiplies them.",
            "Let one layer retry: switch the retries of the library off, or set max_attempts=1. See "
            "docs/explanation/retries.md.",
            evidence,
        )
    if len(many) > SHOWN:
        names = sorted(many)[SHOWN:]
        yield Finding(
            Level.WARNING,
            "retries_multiply",
            f"Attempts of {len(names)} more tasks make more than {CALLS_MAX:g} calls on average: {names[0]} and so on.",
            "Look at these first; run jobs doctor again when they are mended.",
            {"more": len(names)},
        )


def _add(sums: dict[str, list[int]], one: Any) -> None:
    """A version of the code may write other keys."""
    if isinstance(one, dict) and isinstance(one.get("task"), str):
        for key, place in (("first_runs", 0), ("retries", 0), ("calls", 1)):
            if isinstance(one.get(key), int):
                sums[one["task"]][place] += one[key]
