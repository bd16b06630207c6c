"""What the overview shows, read in bounded time. Each section is read by itself, so that a slow one hides no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from jobqueue.admin.page import limited
from jobqueue.admin.page.formatting import error_line, error_tail, message_of
from jobqueue.alarms import Alarm, firing
from jobqueue.alarms.looking import SILENT_SECONDS
from jobqueue.db.clock import read_now
from jobqueue.db.time_limit import time_limit
from jobqueue.flow import paused
from jobqueue.maintenance.worker_rows import SILENT, held_jobs, state_of
from jobqueue.models import Job, JobAttempt, Worker
from jobqueue.requested import UNCHARGED
from jobqueue.schedules.listing import late_names
from jobqueue.stats.history import Part, QueueHistory, ended
from jobqueue.stats.live import HELD_BACK_GATES, QueueStats, count_held_back, figures
from jobqueue.transitions.claiming.candidates import queue_names

T = TypeVar("T")
#: how long a section may take, and how long what it has read is shown to everybody
READ_SECONDS, KEPT_SECONDS = 2.0, 2
#: jobs of a queue and state are counted up to the first of these by which all queues have no more than ENTRIES_MAX of
#: a state, or else the last: a page that is looked at all day counts less than a command
COUNTS_MAX, ENTRIES_MAX = (1000, 500, 250), 10_000
#: the newest failed attempts that are looked at, how old they may be, and the failures that are shown
ATTEMPTS_MAX, FAILING_FOR, FAILING_SHOWN = 1000, timedelta(hours=1), 8
#: workers that are looked at, silent ones that are named, and jobs of each of these that are counted
WORKERS_MAX, SILENT_MAX, LEASES_MAX = 100_000, 50, 100
#: schedules that are late are counted up to this
LATE_MAX = 1000
#: queues whose jobs are counted, the first ones by name; and those in which jobs behind gates are counted
QUEUES_READ, QUEUES_MAX = 500, 200


@dataclass(frozen=True, slots=True)
class Failing:
    """Attempts of the last hour that failed for the same reason."""

    fingerprint: str | None
    task: str | None
    error: str  # the last line of the error of the sample
    count: int
    last_seen: datetime
    sample_job_id: int


@dataclass(frozen=True, slots=True)
class Queues:
    """The figures of the first QUEUES_READ queues by name; `more`: there are others."""

    stats: list[QueueStats]
    more: bool


@dataclass(frozen=True, slots=True)
class HeldBack:
    """How many waiting jobs are behind each gate; `capped`: there are more."""

    by_gate: dict[int, int]
    capped: bool


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker without heartbeats, and the jobs that it holds, up to LEASES_MAX."""

    id: int
    name: str
    heartbeat_at: datetime
    jobs: int


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers run, the threads of those, and the ones that are silent, up to SILENT_MAX of each kind.

    Silent are those that have not stopped but send no heartbeats, and those that somebody has marked as such in the
    last SILENT_SECONDS and that still hold jobs.
    """

    running: int
    silent: list[Silent]
    threads: int


@dataclass(frozen=True, slots=True)
class Late:
    """How many schedules are due and do not fire, up to LATE_MAX; the first of them, and for how long it has been."""

    count: int
    first: str = ""
    seconds: float = 0.0


def kept(section: str, using: str, read: Callable[[], T], seconds: int = KEPT_SECONDS) -> T | None:
    """What read() gives, or gave to somebody in the last `seconds`; None if it took too long."""
    return limited.kept(f"overview-{using}-{section}", read, seconds)


def count_max(queues: int) -> int:
    """Up to how many jobs of a state are counted in each of so many queues."""
    return next((most for most in COUNTS_MAX if most * queues <= ENTRIES_MAX), COUNTS_MAX[-1])


def queues(using: str) -> Queues:
    """The figures of each queue, up to count_max(). Raises StatementTimeout, as all of these."""
    found = figures((), everywhere=True, using=using, most=count_max, seconds=READ_SECONDS, first=QUEUES_READ)
    more = len(found) == QUEUES_READ and queue_names(using=using, after=found[-1].queue, limit=1)
    return Queues(found, bool(more))


def history(using: str, length: timedelta, part: timedelta) -> tuple[list[Part], dict[str, QueueHistory]]:
    """What ended in each part of the time; and in each queue. Of too many rows without histograms."""
    found = ended(read_now(using), length, part, by="queue", using=using)
    if found.share < 1:
        for one in (*found.parts, *(own.whole for own in found.queues.values())):
            one.forget_times()
    return found.parts, found.queues


def held_back(using: str, names: Sequence[str], *, more: bool) -> HeldBack:
    """The jobs behind gates in the first QUEUES_MAX of these queues; `more`: there are others."""
    most = count_max(len(names))
    with time_limit(READ_SECONDS, using=using) as limit:
        of_queues = count_held_back(names[:QUEUES_MAX], using, limit.check, most)
    found = dict.fromkeys(HELD_BACK_GATES, 0)
    for of_gates in of_queues.values():
        for gate, count in of_gates.items():
            found[gate] += count
    capped = more or len(names) > QUEUES_MAX or any(most in of_gates.values() for of_gates in of_queues.values())
    return HeldBack({gate: count for gate, count in found.items() if count}, capped)


def failing(using: str) -> list[Failing]:
    """What fails now, by the newest ATTEMPTS_MAX failed attempts: the most frequent failures first."""
    since = read_now(using) - FAILING_FOR
    attempts = JobAttempt.objects.using(using).order_by("-id")
    columns = ("job_id", "fingerprint", "error_class", "cause", "ended_at")
    groups: dict[tuple[str | None, str], list[tuple[int, datetime]]] = {}
    with time_limit(READ_SECONDS, using=using):
        for job_id, fingerprint, error_class, cause, ended_at in attempts.values_list(*columns)[:ATTEMPTS_MAX]:
            if ended_at >= since and cause not in UNCHARGED:
                groups.setdefault((fingerprint, error_class), []).append((job_id, ended_at))
        largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:FAILING_SHOWN]
        rows = Job.objects.using(using).filter(pk__in=[found[0][0] for _, found in largest])
        ends = rows.annotate(tail=error_tail()).values_list("pk", "task", "tail")
        jobs = {job_id: (task, error_line(tail)) for job_id, task, tail in ends}
    failures = []
    for (fingerprint, error_class), found in largest:
        job_id, last_seen = found[0]
        task, line = jobs.get(job_id, (None, ""))
        failures.append(Failing(fingerprint, task, message_of(error_class, line), len(found), last_seen, job_id))
    return failures


def workers(using: str) -> Workers:
    """Those that have not stopped, and those that were silent lately."""
    now = read_now(using)
    rows = Worker.objects.using(using).only("name", "heartbeat_at", "heartbeat_seconds", "concurrency", "stopped_at")
    marked = rows.filter(stopped_at__gte=now - timedelta(seconds=SILENT_SECONDS), stop_reason=SILENT)
    with time_limit(READ_SECONDS, using=using) as limit:
        present = list(rows.filter(stopped_at__isnull=True).order_by("-heartbeat_at")[:WORKERS_MAX])
        limit.check()
        lost = list(marked.order_by("-stopped_at")[:SILENT_MAX])
        silent = [row for row in present if state_of(row, now) == "silent"][-SILENT_MAX:]
        limit.check()
        held = held_jobs([row.name for row in (*silent, *lost)], limit=LEASES_MAX, using=using)
    running = [row for row in present if state_of(row, now) == "running"]
    found = [
        Silent(row.pk, row.name, row.heartbeat_at, len(held.get(row.name, ())))
        for row in (*silent, *(row for row in lost if held.get(row.name)))
    ]
    found.sort(key=lambda one: (-one.jobs, one.heartbeat_at))
    return Workers(len(running), found, sum(row.concurrency for row in running))


def modes(using: str) -> dict[str, str]:
    """Map each paused or draining queue to its mode."""
    with time_limit(READ_SECONDS, using=using):
        return {one.queue: one.mode for one in paused(using=using) if one.task is None}


def late(using: str) -> Late:
    """The schedules that are due and do not fire."""
    with time_limit(READ_SECONDS, using=using):
        names, seconds = late_names(using, LATE_MAX)
    return Late(len(names), names[0], seconds) if names else Late(0)


def alarms(using: str) -> list[Alarm]:
    """Those that fire."""
    with time_limit(READ_SECONDS, using=using):
        return firing(using=using)
