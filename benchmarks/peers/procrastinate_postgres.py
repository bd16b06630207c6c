"""procrastinate on PostgreSQL, concurrency 10, without its line of log per job; LISTEN/NOTIFY is its default."""

from __future__ import annotations

import os
import sys

import procrastinate
import psycopg

from benchmarks.effects import effect

DISTRIBUTION = "procrastinate"
_URL = os.environ["BENCH_URL"].rpartition("/")[0] + "/" + os.environ["BENCH_NAME"]
app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=_URL))
# procrastinate's command line swaps this connector for its asynchronous one.
_opened = False
_WORKERS = """
import asyncio, logging, procrastinate
from benchmarks.peers.procrastinate_postgres import app, _URL
logging.disable(logging.INFO)
async def main():
    connector = procrastinate.PsycopgConnector(conninfo=_URL)
    with app.replace_connector(connector) as replaced:
        async with replaced.open_async():
            await replaced.run_worker_async(concurrency=10, install_signal_handlers=False)
asyncio.run(main())
"""


@app.task(name="job")
async def job(number: int) -> None:
    """Record the start."""
    effect(number)


def reset() -> None:
    """Create the tables if needed, and empty them."""
    with psycopg.connect(_URL, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone() == (None,):
            _open()
            app.schema_manager.apply_schema()
        connection.execute("TRUNCATE procrastinate_jobs CASCADE")


def enqueue(number: int) -> None:
    """Enqueue one job with its own commit."""
    _open()
    job.defer(number=number)


def worker(processes: int) -> list[str]:
    """The command of one worker, or of a shell that starts several."""
    one = [sys.executable, "-c", _WORKERS]
    return one if processes == 1 else ["/bin/sh", "-c", '"$@" & ' * (processes - 1) + 'exec "$@"', "sh", *one]


def finished() -> int:
    """The number of jobs with a committed end."""
    with psycopg.connect(_URL) as connection:
        row = connection.execute("SELECT COUNT(*) FROM procrastinate_jobs WHERE status = 'succeeded'").fetchone()
    return int(row[0]) if row else 0


def _open() -> None:
    global _opened
    if not _opened:
        app.open()
        _opened = True
