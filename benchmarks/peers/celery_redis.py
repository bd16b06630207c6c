"""Celery with Redis: prefork, prefetch 64, results ignored; jobs are acknowledged before they run (its default)."""

from __future__ import annotations

import os
import sys

from celery import Celery

from benchmarks.effects import effect

DISTRIBUTION = "celery"
app = Celery("bench", broker=os.environ["BENCH_REDIS_URL"])
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 64
app.conf.worker_redirect_stdouts = False


@app.task
def job(number: int) -> None:
    """Record the start."""
    effect(number)


def reset() -> None:
    """Delete all messages."""
    import redis

    redis.Redis.from_url(os.environ["BENCH_REDIS_URL"]).flushdb()


def enqueue(number: int) -> None:
    """Send one message."""
    job.delay(number)


def worker(processes: int) -> list[str]:
    """The command of a Celery worker with `processes` children."""
    options = ["--loglevel=ERROR", "--without-gossip", "--without-mingle", f"--concurrency={processes}"]
    return [sys.executable, "-m", "celery", "-A", "benchmarks.peers.celery_redis", "worker", *options]
