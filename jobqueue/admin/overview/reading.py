"""What the overview shows, read in bounded time. Each section is read by itself, so that a slow one hides no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from jobqueue.admin.page import keeping
from jobqueue.alarms import Alarm, firing
from jobqueue.db.clock import read_now
from jobqueue.db.time_limit import time_limit
from jobqueue.flow import paused
from jobqueue.maintenance.worker_list import state_of
from jobqueue.models import Job, JobAttempt, JobStat, Worker
from jobqueue.stats.history import Part, read_history
from jobqueue.stats.queues import QueueStats, figures

T = TypeVar("T")
#: how long a section may take, and how long what it has read is shown to everybody
READ_SECONDS, KEPT_SECONDS = 2.0, 2
#: jobs of a queue and state are counted up to this: a page that is looked at all day counts less than a command
COUNT_MAX = 1000
#: the newest failed attempts that are looked at, how old they may be, and the failures that are shown
ATTEMPTS_MAX, FAILING_FOR, FAILING_SHOWN = 1000, timedelta(hours=1), 8
WORKERS_MAX = 1000
#: minutes of the course of each queue
COURSE_MINUTES = 15


@dataclass(frozen=True, slots=True)
class Failing:
    """Attempts of the last hour that failed for the same reason."""

    fingerprint: str | None
    task: str | None
    error_class: str
    count: int
    last_seen: datetime
    sample_job_id: int


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers run and how many are silent; the threads of those that run."""

    running: int
    silent: int
    threads: int


def kept(section: str, using: str, read: Callable[[], T]) -> T | None:
    """What read() gives, or gave to somebody in the last KEPT_SECONDS; None if it took too long."""
    return keeping.kept(f"overview-{using}-{section}", read, KEPT_SECONDS)


def queues(using: str) -> list[QueueStats]:
    """The figures of each queue. Raises StatementTimeout, as all of these."""
    return figures((), everywhere=True, using=using, most=COUNT_MAX, seconds=READ_SECONDS)


def history(using: str, length: timedelta, part: timedelta) -> list[Part]:
    """What ended in each part of the time."""
    return read_history(read_now(using), length, part, using=using)


def courses(using: str) -> dict[str, list[int]]:
    """By queue, how many jobs ended in each of the last COURSE_MINUTES minutes."""
    now = read_now(using)
    first = now.replace(second=0, microsecond=0) - timedelta(minutes=COURSE_MINUTES - 1)
    spans = (JobStat.Span.PROCESS, JobStat.Span.MINUTE)
    rows = JobStat.objects.using(using).filter(span__in=spans, begins_at__gte=first, begins_at__lte=now)
    found: dict[str, list[int]] = {}
    with time_limit(READ_SECONDS, using=using):
        for queue, begins_at, done, dead in rows.order_by().values_list("queue", "begins_at", "done", "dead"):
            course = found.setdefault(queue, [0] * COURSE_MINUTES)
            course[int((begins_at - first) / timedelta(minutes=1))] += int(done) + int(dead)
    return found


def failing(using: str) -> list[Failing]:
    """What fails now, by the newest ATTEMPTS_MAX failed attempts: the most frequent failures first."""
    since = read_now(using) - FAILING_FOR
    rows = JobAttempt.objects.using(using).order_by("-id")
    columns = ("job_id", "fingerprint", "error_class", "cause", "ended_at")
    groups: dict[tuple[str | None, str], list[tuple[int, datetime]]] = {}
    with time_limit(READ_SECONDS, using=using):
        for job_id, fingerprint, error_class, cause, ended_at in rows.values_list(*columns)[:ATTEMPTS_MAX]:
            if ended_at >= since and cause not in (JobAttempt.SNOOZED, JobAttempt.DISCARDED):
                groups.setdefault((fingerprint, error_class), []).append((job_id, ended_at))
        largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:FAILING_SHOWN]
        samples = [found[0][0] for _, found in largest]
        tasks = dict(Job.objects.using(using).filter(pk__in=samples).values_list("pk", "task"))
    return [
        Failing(fingerprint, tasks.get(found[0][0]), error_class, len(found), found[0][1], found[0][0])
        for (fingerprint, error_class), found in largest
    ]


def workers(using: str) -> Workers:
    """Those that have not stopped."""
    now = read_now(using)
    columns = ("heartbeat_at", "heartbeat_seconds", "concurrency", "stopped_at")
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True).only(*columns)
    with time_limit(READ_SECONDS, using=using):
        states = [(state_of(row, now), row.concurrency) for row in rows.order_by("-heartbeat_at")[:WORKERS_MAX]]
    threads = sum(count for state, count in states if state == "running")
    running = sum(state == "running" for state, _ in states)
    return Workers(running, len(states) - running, threads)


def modes(using: str) -> dict[str, str]:
    """By queue, whether it is paused or drained; the others are not in it."""
    with time_limit(READ_SECONDS, using=using):
        return {one.queue: one.mode for one in paused(using=using) if one.task is None}


def alarms(using: str) -> list[Alarm]:
    """Those that fire."""
    with time_limit(READ_SECONDS, using=using):
        return firing(using=using)
