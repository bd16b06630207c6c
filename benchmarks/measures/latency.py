"""(c) The time from the commit of an enqueue to the start of its job, at ten jobs a second on an idle worker."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import effects, workers
from benchmarks.bench import Bench, alternate
from benchmarks.fill import OURS, REFERENCE, empty
from benchmarks.stats import percentiles, ratios

WARM_UP = 3


def run(bench: Bench) -> dict[str, Any]:
    """Milliseconds: p50, p95 and p99 of all rounds together, and ratios of the rounds' medians."""
    contestants: dict[str, Callable[[], list[float]]] = {
        "jobqueue": lambda: _ours(bench),
        "raw, polls every 5 ms": lambda: _reference(bench),
    }
    redis = os.environ.get("JOBQUEUE_TEST_REDIS_URL")
    if redis:
        contestants["jobqueue, Redis wake-up"] = lambda: _ours(bench, redis)
    for peer in bench.peers:
        contestants[peer.name] = lambda peer=peer: peer.attempt(lambda: peer.latency(bench)) or []  # type: ignore[misc]
    found = alternate(contestants, bench.plan.latency_rounds)
    record: dict[str, Any] = {}
    middles = {name: [_middle(times) for times in rounds] for name, rounds in found.items()}
    for name, rounds in found.items():
        times = [ms for one in rounds for ms in one]
        record[name] = {"ms": percentiles(times), "jobs": len(times)}
    record["jobqueue"]["ratio"] = ratios(middles["jobqueue"], middles["raw, polls every 5 ms"])
    return record


def _ours(bench: Bench, wakeup: str = "auto") -> list[float]:
    from django.conf import settings
    from django.test import override_settings

    from benchmarks.tasks import stamp

    empty(bench.target, bench.connection, OURS)
    rung = override_settings(JOBQUEUE={**settings.JOBQUEUE, "WAKEUP": wakeup})
    with rung, workers.running(workers.runworker(), {**fresh(bench), "BENCH_WAKEUP": wakeup}):
        return arrivals(bench, lambda number: (stamp.enqueue(number), number)[1])


def _reference(bench: Bench) -> list[float]:
    empty(bench.target, bench.connection, REFERENCE)
    reference = bench.reference()

    def enqueue(number: int) -> int:
        cursor = reference.connection.cursor()
        values = f"({reference.mark}, 0, 0, {reference.now}, {reference.mark})"
        into = "INSERT INTO bench_reference (queue, status, priority, run_at, payload) VALUES"
        returning = "" if bench.target.mysql_like else " RETURNING id"
        cursor.execute(f"{into} {values}{returning}", ("bench", "{}"))
        return int(cursor.fetchone()[0] if returning else cursor.lastrowid)

    with workers.running(workers.reference("--stamp", "--batch", "10"), fresh(bench)):
        found = arrivals(bench, enqueue)
    reference.connection.close()
    return found


def fresh(bench: Bench) -> dict[str, str]:
    """The environment of the workers, with an empty file of starts."""
    Path(bench.env["BENCH_EFFECTS"]).unlink(missing_ok=True)
    return bench.env


def arrivals(bench: Bench, enqueue: Callable[[int], int]) -> list[float]:
    """Enqueue every 50 to 150 ms. Returns the milliseconds from each return of enqueue(), the number, to the start."""
    path = Path(bench.env["BENCH_EFFECTS"])
    _wait(path, enqueue)
    committed: dict[int, float] = {}
    until = time.monotonic() + bench.plan.latency_seconds
    while time.monotonic() < until:
        time.sleep(random.uniform(0.05, 0.15))
        number = enqueue(len(committed) + 1000)
        committed[number] = time.monotonic()
    deadline = time.monotonic() + 10
    while not committed.keys() <= (started := effects.read(path)).keys():
        if time.monotonic() > deadline:
            missing = len(committed.keys() - started.keys())
            raise RuntimeError(f"{missing} of {len(committed)} jobs did not start within 10 s")
        time.sleep(0.05)
    # A job may start before the enqueuing process runs again.
    return [max(0.0, (started[number] - at) * 1000) for number, at in committed.items()]


def _wait(path: Path, enqueue: Callable[[int], int]) -> None:
    """Wait until the worker has started and run a few jobs."""
    for number in range(WARM_UP):
        wanted = enqueue(number)
        deadline = time.monotonic() + 30
        while wanted not in effects.read(path):
            if time.monotonic() > deadline:
                raise RuntimeError("the worker did not start a job within 30 s")
            time.sleep(0.05)


def _middle(times: list[float]) -> float | None:
    found = percentiles(times, (50,))
    return found["p50"] if found else None
