"""(j) Enqueueing and draining jobs with ordering keys, compared with jobs without."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import workers
from benchmarks.bench import Bench, alternate
from benchmarks.fill import OURS, empty, refresh
from benchmarks.stats import ratios, spread

QUEUE = "bench"
HOT = 20_000
#: number of different keys; None = jobs without a key
KEYS: dict[str, int | None] = {"no key": None, "500 keys": 500, "a key each": 10**9}


def run(bench: Bench) -> dict[str, Any]:
    """Jobs a second, and the ratio to jobs without a key."""
    jobs, rounds = bench.plan.key_jobs, bench.plan.rounds
    enqueue = {name: partial(_enqueue, bench, keys, bench.plan.enqueue_single) for name, keys in KEYS.items()}
    drains: dict[str, Callable[[], Any]] = {name: partial(_drain, bench, keys, jobs) for name, keys in KEYS.items()}
    drains["500 keys beside a hot one"] = partial(_drain, bench, 500, jobs, hot=min(HOT, 4 * jobs))
    return {"enqueue": _compared(alternate(enqueue, rounds)), "drain": _compared(alternate(drains, rounds))}


def _compared(found: dict[str, list[Any]]) -> dict[str, Any]:
    plain = found["no key"]
    return {name: {"per_second": spread(values), "ratio": ratios(values, plain)} for name, values in found.items()}


def _empty(bench: Bench) -> None:
    for table in (OURS, "job_lane", "job_key"):
        empty(bench.target, bench.connection, table)


def _key(n: int, keys: int | None) -> str | None:
    return None if keys is None else f"{n % keys:08}"


def _enqueue(bench: Bench, keys: int | None, jobs: int) -> float:
    """Enqueue jobs, each with its own commit."""
    from jobqueue import enqueue

    _empty(bench)
    begun = time.perf_counter()
    for n in range(jobs):
        enqueue(QUEUE, {"n": n}, ordering_key=_key(n, keys))
    return jobs / (time.perf_counter() - begun)


def _drain(bench: Bench, keys: int | None, jobs: int, *, hot: int = 0) -> float | None:
    """Drain with one worker; jobs of the hot key do not count."""
    from dataclasses import replace

    from jobqueue.producer import enqueueing as producer
    from jobqueue.producer.enqueueing import new_job

    _empty(bench)
    base = replace(new_job(QUEUE, {"args": [], "kwargs": {}}), task="benchmarks.tasks.noop")
    # The count below tells them apart by max_attempts.
    first = [replace(base, ordering_key=b"hot", max_attempts=24) for _ in range(hot)]
    others = [replace(base, ordering_key=None if keys is None else f"{n % keys:08}".encode()) for n in range(jobs)]
    for some in (first, others):
        producer.add_many(some)
    refresh(bench.target, bench.connection, OURS)
    sql = f"SELECT COUNT(*) FROM {OURS} WHERE status = 2 AND max_attempts = 25"
    count = bench.counting(sql)
    with workers.running(workers.runworker(), bench.env) as started:
        samples = workers.Watch(jobs, bench.plan.key_seconds, count).until_done(started)
    bench.check_once()
    return workers.rate(samples, jobs)
