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
    """Record the start."""
    effect(number)


def reset() -> None:
    """Delete all messages."""
    huey.flush()


def enqueue(number: int) -> None:
    """Send one message."""
    job(number)


def worker(processes: int) -> list[str]:
    """The command of huey's consumer with `processes` workers."""
    options = ["-w", str(processes), "-k", "process", "-q"]
    return [sys.executable, "-m", "huey.bin.huey_consumer", "benchmarks.peers.huey_redis.huey", *options]
