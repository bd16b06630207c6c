"""django-q2 on the ORM broker, tuned (bulk 50); counted are saved results."""

from __future__ import annotations

import os
import sys

import django

from benchmarks.effects import effect
from benchmarks.peers.django_app import tables

DISTRIBUTION = "django-q2"


def job(number: int) -> None:
    """Says that it started."""
    effect(number)


def reset() -> None:
    """Tables there and empty."""
    tables("django_q")


def enqueue(number: int) -> None:
    """One job, its own commit."""
    django.setup()
    from django_q.tasks import async_task

    async_task("benchmarks.peers.django_q2.job", number)


def worker(processes: int) -> list[str]:
    """qcluster with so many workers."""
    os.environ["BENCH_WORKERS"] = str(processes)
    return [sys.executable, "-m", "django", "qcluster", "-v", "0"]


def finished() -> int:
    """Committed results."""
    django.setup()
    from django_q.models import Success

    return int(Success.objects.count())
