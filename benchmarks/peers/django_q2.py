"""django-q2 on the ORM broker, tuned (bulk 50); saved results count."""

from __future__ import annotations

import os
import sys

import django

from benchmarks.effects import effect
from benchmarks.peers.django_app import tables

DISTRIBUTION = "django-q2"


def job(number: int) -> None:
    """Record the start."""
    effect(number)


def reset() -> None:
    """Create the tables if needed, and empty them."""
    tables("django_q")


def enqueue(number: int) -> None:
    """Enqueue one job with its own commit."""
    django.setup()
    from django_q.tasks import async_task

    async_task("benchmarks.peers.django_q2.job", number)


def worker(processes: int) -> list[str]:
    """The command of a qcluster with `processes` workers."""
    os.environ["BENCH_WORKERS"] = str(processes)
    return [sys.executable, "-m", "django", "qcluster", "-v", "0"]


def finished() -> int:
    """The number of committed results."""
    django.setup()
    from django_q.models import Success

    return int(Success.objects.count())
