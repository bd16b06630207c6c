"""The rows of the workers that run, as explanations need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.db.models import Case, IntegerField, Q, When
from django.utils.translation import gettext

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.explain.explanation import Explanation, span
from jobqueue.explain.hosts import Short, shortages
from jobqueue.explain.reports import RECENT_SECONDS
from jobqueue.explain.slowness import SlowCommit, slow_commit_ms
from jobqueue.maintenance.worker_rows import alive
from jobqueue.models import Worker
from jobqueue.payload import JSON

#: rows that are read: of a cluster that has more, an answer could be wrong
WORKERS_MAX = 100_000
#: the pauses of a worker between two processes that crash are shorter
CRASHED_SECONDS = 60.0


class RunningWorker(NamedTuple):
    """What the row of a worker that runs says."""

    name: str
    queues: str
    threads: int
    host: str
    clock_ahead_seconds: float | None
    told: int  # 1: it has told its stacks a moment ago
    short: list[Short]  # what it is short of
    commit_ms: int | None  # how long a commit takes for it, if that is slow


def slow_commits(workers: Sequence[RunningWorker]) -> list[SlowCommit]:
    """What the rows say about commits that take long."""
    return [SlowCommit(one.commit_ms, one.name, one.host) for one in workers if one.commit_ms is not None]


def crash_loop(using: str) -> list[Explanation]:
    """no_worker, if the last worker was killed a moment ago: its command starts another one. One statement."""
    rows = Worker.objects.using(using).filter(stopped_at__gte=UtcNowPlus(-CRASHED_SECONDS)).annotate(now=UtcNow())
    died = Q(stop_reason__startswith="was killed by") | Q(stop_reason__startswith="exited with")
    for worker in rows.filter(died).order_by("-stopped_at")[:1]:
        seconds = (worker.now - worker.stopped_at).total_seconds()
        facts = {"worker": worker.name, "reason": worker.stop_reason, "time": span(seconds)}
        text = gettext(
            "No worker process is running: the last one, %(worker)s, died %(time)s ago (%(reason)s). Its command "
            "starts another one after a pause, which grows with each crash."
        )
        step = gettext("Find the job that kills it: the log of the worker names it. Cancel it, or let it run alone.")
        evidence: dict[str, JSON] = {"living": 0, "serve": [], "worker": worker.name, "reason": worker.stop_reason}
        return [Explanation("no_worker", text % facts, evidence, step)]
    return []


def read_workers(using: str) -> list[RunningWorker]:
    """Up to WORKERS_MAX workers that run. One statement."""
    told = Case(When(stacks_at__gte=UtcNowPlus(-RECENT_SECONDS), then=1), default=0, output_field=IntegerField())
    found = alive(load().worker_silent_seconds, using=using).annotate(told=told)
    # MariaDB would read the rows of workers that have stopped.
    rows = vendor(using).force_index(found, "ix_worker_alive")
    columns = rows.values_list("name", "queues", "concurrency", "host", "clock_ahead_seconds", "told", "troubles")
    return [
        RunningWorker(
            name, queues, threads, host, ahead, told, shortages(name, host, troubles), slow_commit_ms(troubles)
        )
        for name, queues, threads, host, ahead, told, troubles in columns[:WORKERS_MAX]
    ]
