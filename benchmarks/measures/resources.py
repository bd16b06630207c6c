"""(f) Memory and processor time of a busy worker."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import proc, workers
from benchmarks.bench import Bench
from benchmarks.fill import OURS, REFERENCE
from benchmarks.stats import digits

BARE = "import django, time; django.setup(); from django.db import connection; connection.cursor(); time.sleep(600)"


def run(bench: Bench) -> dict[str, Any]:
    """Measure worker and reference, and a Django process that does nothing."""
    jobs = bench.plan.memory_jobs
    bare = _bare(bench)
    record: dict[str, Any] = {"bare Django": {"memory_mb": bare}}
    for name, table, command in (
        ("jobqueue", OURS, workers.runworker()),
        ("raw", REFERENCE, workers.reference()),
    ):
        bench.say(f"resources: {name}")
        record[name] = {"busy": _busy(bench, table, command, jobs)}
    found = record["jobqueue"]["busy"]
    found["above_bare_mb"] = round(found["memory_mb"]["pss"] - bare["pss"], 1)
    # Only of the process that runs jobs, including pages that it shares with the supervisor.
    found["largest_above_bare_mb"] = round(found["memory_mb"]["largest_rss"] - bare["rss"], 1)
    return record


def _bare(bench: Bench) -> dict[str, float]:
    with workers.running([sys.executable, "-c", BARE], bench.env) as (process,):
        time.sleep(3)
        return proc.memory_mb(process.pid)


def _busy(bench: Bench, table: str, command: list[str], jobs: int) -> dict[str, Any]:
    bench.load(table, jobs)
    server, look = bench.target.server_pid(), bench.finished(table)
    memory: list[tuple[int, dict[str, float]]] = []
    with workers.running(command, bench.env) as (process,):
        begin: list[Any] = []

        def count() -> int:
            done = look()
            if done and not begin:
                begin.extend([done, *_cpu(process.pid, server)])
            if done and (not memory or done - memory[-1][0] >= jobs // 20):
                memory.append((done, proc.memory_mb(process.pid)))
            return done

        samples = workers.Watch(jobs, 1200.0, count).until_done([process])
        worker_cpu, server_cpu = _cpu(process.pid, server)
        at_end = proc.memory_mb(process.pid)
    share = 10_000 / max(1, samples[-1][1] - begin[0])
    return {
        "jobs": samples[-1][1],
        "memory_mb": at_end,
        "course_pss_mb": [found["pss"] for _, found in memory],
        "cpu_s_per_10k": digits((worker_cpu - begin[1]) * share),
        "server_cpu_s_per_10k": digits((server_cpu - begin[2]) * share) if server else None,
    }


def _cpu(worker: int, server: int | None) -> tuple[float, float]:
    return proc.cpu_seconds(worker), proc.cpu_seconds(server) if server else 0.0
