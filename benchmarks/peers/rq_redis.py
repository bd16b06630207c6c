"""RQ with Redis: SimpleWorker, which does not fork per job; the default worker is several times slower."""

from __future__ import annotations

import os
import sys

from redis import Redis
from rq import Queue

from benchmarks.effects import effect

DISTRIBUTION = "rq"
connection = Redis.from_url(os.environ["BENCH_REDIS_URL"])
queue = Queue("bench", connection=connection)


def job(number: int) -> None:
    """Record the start."""
    effect(number)


def reset() -> None:
    """Delete all messages."""
    connection.flushdb()


def enqueue(number: int) -> None:
    """Send one message."""
    queue.enqueue("benchmarks.peers.rq_redis.job", number, result_ttl=0)


def worker(processes: int) -> list[str]:
    """One SimpleWorker, or RQ's pool of them."""
    rq, url = [sys.executable, "-m", "rq.cli"], os.environ["BENCH_REDIS_URL"]
    options = ["--url", url, "--worker-class", "rq.worker.SimpleWorker"]
    return (
        [*rq, "worker", *options, "--logging_level", "ERROR", "bench"]
        if processes == 1
        else [*rq, "worker-pool", *options, "--logging-level", "ERROR", "-n", str(processes), "bench"]
    )
