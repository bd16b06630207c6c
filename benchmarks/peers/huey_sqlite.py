"""huey with SQLite: process workers, no results, fsync on; a job's row is deleted before it runs."""

from __future__ import annotations

import os
import sys

from huey import SqliteHuey

from benchmarks.effects import effect

DISTRIBUTION = "huey"
huey = SqliteHuey("bench", filename=os.path.join(os.environ["BENCH_FOLDER"], "huey.db"), results=False, fsync=True)


@huey.task()
def job(number: int) -> None:
    """Record the start."""
    effect(number)


def reset() -> None:
    """Delete all rows."""
    huey.flush()


def enqueue(number: int) -> None:
    """Insert one row."""
    job(number)


def worker(processes: int) -> list[str]:
    """The command of huey's consumer with `processes` workers."""
    options = ["-w", str(processes), "-k", "process", "-q"]
    return [sys.executable, "-m", "huey.bin.huey_consumer", "benchmarks.peers.huey_sqlite.huey", *options]
