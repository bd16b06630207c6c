"""dramatiq with Redis: 8 threads per process, its default."""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.effects import effect

DISTRIBUTION = "dramatiq"
broker = RedisBroker(url=os.environ["BENCH_REDIS_URL"])
dramatiq.set_broker(broker)


@dramatiq.actor
def job(number: int) -> None:
    """Record the start."""
    effect(number)


def reset() -> None:
    """Delete all messages."""
    broker.client.flushdb()


def enqueue(number: int) -> None:
    """Send one message."""
    job.send(number)


def worker(processes: int) -> list[str]:
    """The dramatiq command."""
    options = ["--processes", str(processes), "--threads", "8"]
    return [sys.executable, "-m", "dramatiq", "benchmarks.peers.dramatiq_redis", *options]
