"""huey with Redis: process workers, no results; a job is popped before it runs."""

from __future__ import annotations

import os
import sys

from huey import RedisHuey

from benchmarks.effects import effect

DISTRIBUTION = "huey"
huey = RedisHuey("bench", url=os.environ["BENCH_REDIS_URL"], results=False)


@huey.task()
def job(number: int) -> None:
    """Says that it started."""
    effect(number)


def reset() -> None:
    """No message left."""
    huey.flush()


def enqueue(number: int) -> None:
    """One message."""
    job(number)


def worker(processes: int) -> list[str]:
    """huey's consumer with so many processes."""
    options = ["-w", str(processes), "-k", "process", "-q"]
    return [sys.executable, "-m", "huey.bin.huey_consumer", "benchmarks.peers.huey_redis.huey", *options]
