"""django-tasks-db: Django Tasks' own database backend. No batch or concurrency setting: one worker, one job."""

from __future__ import annotations

import sys

import django

from benchmarks.peers.django_app import tables

DISTRIBUTION = "django-tasks-db"
_WORKERS = """
import os, sys
children = [os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-m", "django", "db_worker", "-v", "0"])
            for _ in range({processes})]
import signal
def stop(*_):
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
for pid in children:
    os.waitpid(pid, 0)
"""


def reset() -> None:
    """Create the tables if needed, and empty them."""
    tables("django_tasks_database")


def enqueue(number: int) -> None:
    """Enqueue one job with its own commit."""
    django.setup()
    from benchmarks.peers.django_tasks_job import job

    job.enqueue(number)


def worker(processes: int) -> list[str]:
    """db_worker with its defaults; several workers are several commands."""
    return [sys.executable, "-c", _WORKERS.format(processes=processes)]


def finished() -> int:
    """The number of committed results."""
    django.setup()
    from django_tasks_db.models import DBTaskResult

    return int(DBTaskResult.objects.filter(status="SUCCESSFUL").count())
