"""The workers as operators see them: which run, and what each holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Literal, TypedDict

from django.db.models import QuerySet

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.expressions import Slot, Unestimated
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.maintenance.worker_rows import HEARTBEATS_MISSED
from jobqueue.models import Job, Worker

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    class Facts(TypedDict):
        """Columns that are read with a worker."""

        now: datetime

    ReadWorker = WithAnnotations[Worker, Facts]
else:
    ReadWorker = Worker

State = Literal["running", "silent", "stopped"]
#: leases of one worker that are read
LEASES_MAX = 1000
_ORDER: Mapping[str, int] = {"running": 0, "silent": 1, "stopped": 2}


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that a worker holds now."""

    id: int
    queue: str
    task: str | None
    since: datetime | None
    lease_until: datetime | None


@dataclass(frozen=True, slots=True)
class ListedWorker:
    """A child process of a runworker command. Ages are by the database's clock.

    Those of one command share host, supervisor_pid and boot_id. Of more than LEASES_MAX jobs `jobs` is LEASES_MAX,
    `jobs_capped` is true, and the oldest is that of those that were read.
    """

    name: str
    host: str
    pid: int
    supervisor_pid: int
    boot_id: str
    queues: str
    concurrency: int
    version: str
    state: State
    stop_reason: str
    started_at: datetime
    heartbeat_at: datetime
    heartbeat_age_seconds: float
    stopped_at: datetime | None
    jobs: int
    jobs_capped: bool
    oldest_job_age_seconds: float | None
    held: tuple[HeldJob, ...]


def state_of(worker: Worker, now: datetime) -> State:
    """The state of a worker: it runs, has missed its heartbeats, or has stopped, perhaps by another's mark."""
    if worker.stopped_at is not None:
        return "stopped"
    limit = max(load().worker_silent_seconds, HEARTBEATS_MISSED * (worker.heartbeat_seconds or 0.0))
    return "silent" if (now - worker.heartbeat_at).total_seconds() > limit else "running"


def listed(*, limit: int, stopped: bool, using: str) -> list[ListedWorker]:
    """Up to `limit` workers that have not stopped, last heartbeat first, and with `stopped` as many that have, the last
    ones first; those of one command together, and commands that run before the others.

    One statement or two, and one for each hundred workers.
    """
    rows: list[ReadWorker] = list(_rows(using).filter(stopped_at__isnull=True).order_by("-heartbeat_at")[:limit])
    if stopped:
        rows += _rows(using).filter(stopped_at__isnull=False).order_by("-stopped_at")[:limit]
    held = held_jobs([row.name for row in rows], limit=LEASES_MAX + 1, using=using)
    return _together(_listed(row, held.get(row.name, ())) for row in rows)


def held_jobs(names: Sequence[str], *, limit: int, using: str) -> dict[str, list[HeldJob]]:
    """Up to `limit` jobs of each of these workers, the oldest ids first. One statement for each hundred workers."""
    found: dict[str, list[HeldJob]] = defaultdict(list)
    for name, *columns in _leases(using, limit).rows_of_each([{"worker": name} for name in names]):
        found[name].append(HeldJob(*columns))
    return found


def _rows(using: str) -> QuerySet[ReadWorker]:
    rows = Worker.objects.using(using).defer("retries", "gates", "schedules", "stacks")
    return rows.annotate(now=Selected(UtcNow()))


def _together(workers: Iterable[ListedWorker]) -> list[ListedWorker]:
    """Sort workers in the order that listed() promises."""
    commands: dict[tuple[str, int, str], list[ListedWorker]] = defaultdict(list)
    for worker in workers:
        commands[worker.host, worker.supervisor_pid, worker.boot_id].append(worker)
    for own in commands.values():
        # Of numbered names the shorter one has the smaller number.
        own.sort(key=lambda worker: (_ORDER[worker.state], len(worker.name), worker.name))
    ordered = sorted(commands.items(), key=lambda item: (_ORDER[item[1][0].state], item[0]))
    return [worker for _, own in ordered for worker in own]


def _listed(row: ReadWorker, held: Sequence[HeldJob]) -> ListedWorker:
    shown = held[:LEASES_MAX]
    since = min((job.since for job in shown if job.since is not None), default=None)
    return ListedWorker(
        name=row.name,
        host=row.host,
        pid=row.pid,
        supervisor_pid=row.supervisor_pid,
        boot_id=row.boot_id,
        queues=row.queues,
        concurrency=row.concurrency,
        version=row.version,
        state=state_of(row, row.now),
        stop_reason=row.stop_reason,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
        heartbeat_age_seconds=_age(row.heartbeat_at, row.now),
        stopped_at=row.stopped_at,
        jobs=len(shown),
        jobs_capped=len(held) > LEASES_MAX,
        oldest_job_age_seconds=None if since is None else _age(since, row.now),
        held=tuple(shown),
    )


def _age(instant: datetime, now: datetime) -> float:
    # What was written after `now` was read has an age of 0.
    return max(0.0, (now - instant).total_seconds())


@cache
def _leases(using: str, limit: int) -> Prepared:
    # By equality: for a list of names MySQL may read the whole index.
    rows = Job.objects.using(using).filter(
        locked_by=Slot("worker", NameField()), status=Unestimated(Job.Status.PROCESSING)
    )
    columns = ("locked_by", "pk", "queue", "task", "locked_at", "lock_until")
    return prepare_rows(vendor(using).force_index(rows, "ix_worker").values_list(*columns)[:limit])
