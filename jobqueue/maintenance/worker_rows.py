"""The table of workers: which run, since when, their heartbeats, the jobs they hold, and their stacks on request."""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

from django.db import IntegrityError
from django.db.models import F, FloatField, Q, QuerySet
from django.db.models.functions import Coalesce

import jobqueue
from jobqueue.base.payload import JSON
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import send_after_commit
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.expressions import Slot, Unestimated
from jobqueue.db.fields import NameField
from jobqueue.db.prepared import Prepared, prepare_change, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.failures import storable
from jobqueue.gates.limits import own_limits
from jobqueue.models import Job, Worker
from jobqueue.signals import worker_started, worker_stopped

SILENT = "silent: no heartbeat"
#: keys of the column `troubles` that tell what a worker is short of
RESOURCES = ("memory", "descriptors", "disk")
#: the key that tells how slowly the database commits what it writes: {"ms": 740}
SLOW_COMMIT = "commit"
HEARTBEATS_MISSED = 3  # a worker may miss so many of its own heartbeats, however long they are
QUEUES_BYTES = 1000  # of the names of a worker's queues
_SECONDS = Slot("seconds", FloatField())


class Renewal(NamedTuple):
    """The result of renew()."""

    seconds: float  # that the UPDATE took with its commit
    missing: frozenset[str] = frozenset()  # workers whose row is gone, as after a restored back-up


def register(
    name: str,
    *,
    supervisor_pid: int,
    boot_id: str,
    queues: str,
    concurrency: int,
    using: str,
    heartbeat_seconds: float | None = None,
) -> None:
    """Insert the row of this process; repeated calls insert one. The worker renews it every `heartbeat_seconds`."""
    row = Worker(
        name=name,
        host=storable(socket.gethostname(), 255),
        pid=os.getpid(),
        supervisor_pid=supervisor_pid,
        boot_id=boot_id,
        queues=storable(queues, QUEUES_BYTES),
        concurrency=concurrency,
        version=jobqueue.__version__,
        heartbeat_seconds=heartbeat_seconds,
        gates=own_limits(),
    )
    try:
        retry_transient("housekeeping", lambda: row.save(using=using, force_insert=True), using=using)
    except IntegrityError:
        # An earlier try may have been committed and its answer lost.
        if not Worker.objects.using(using).filter(name=name, pid=row.pid, boot_id=boot_id).exists():
            raise
    send_after_commit(worker_started, Worker, name=name, using=using)


def was_cut(queues: str) -> bool:
    """Return whether the names of a worker's queues may have been too long to be stored as a whole."""
    # Up to three bytes of a character are left out on each side of the mark.
    return "..." in queues and len(queues.encode()) > QUEUES_BYTES - 8


def renew(names: Sequence[str], *, using: str, clock_ahead_seconds: float | None = None) -> Renewal:
    """Renew the heartbeats of these workers, also of those that were marked as silent.

    `clock_ahead_seconds`: how far the clock of their host is ahead of the database's; None: not known.
    """
    rows = Worker.objects.using(using).filter(name__in=names)
    change = {"heartbeat_at": UtcNow(), "clock_ahead_seconds": clock_ahead_seconds}

    def write() -> tuple[int, float]:
        begun = time.monotonic()
        return rows.update(**change), time.monotonic() - begun

    found, seconds = retry_transient("housekeeping", write, using=using)
    silent = rows.filter(stopped_at__isnull=False, stop_reason=SILENT)
    retry_transient("housekeeping", lambda: silent.update(stopped_at=None, stop_reason=""), using=using)
    if found == len(names):
        return Renewal(seconds)
    there: set[str] = retry_transient("housekeeping", lambda: {*rows.values_list("name", flat=True)}, using=using)
    return Renewal(seconds, frozenset(names) - there)


def note(name: str, *, using: str, **columns: JSON) -> bool:
    """Store columns of a worker's row; False if it has none yet.

    `retries`: the counts of its runs and retries. `troubles`: what it is short of, whether it is stalled, and slow
    commits; None: nothing is wrong. `schedules`: the versions that it has announced, so that its monitor announces
    them on. `rss_bytes`: the resident memory of its process.
    """
    rows = Worker.objects.using(using).filter(name=name)
    return bool(retry_transient("housekeeping", lambda: rows.update(**columns), using=using))


def schedules_of(names: Sequence[str], *, using: str) -> set[int]:
    """The versions of schedules that these workers have announced."""
    rows = Worker.objects.using(using).filter(name__in=names, schedules__isnull=False)
    found = rows.values_list("schedules", flat=True)
    return {number for ids in found if isinstance(ids, list) for number in ids if isinstance(number, int)}


def retire(name: str, reason: str, *, using: str) -> None:
    """Mark a worker as stopped, once."""
    rows = Worker.objects.using(using).filter(name=name, stopped_at__isnull=True)
    retry_transient(
        "housekeeping", lambda: rows.update(stopped_at=UtcNow(), stop_reason=storable(reason, 200)), using=using
    )
    send_after_commit(worker_stopped, Worker, name=name, reason=reason, using=using)


def is_any_alive(silent_seconds: float, *, using: str) -> bool:
    """Return True if a worker has not stopped and is not silent, by the definition of retire_silent()."""
    return alive(silent_seconds, using=using).exists()


def alive(silent_seconds: float, *, using: str) -> QuerySet[Worker]:
    """The workers that run, as is_any_alive() understands it."""
    own = UtcNowPlus(Coalesce(F("heartbeat_seconds"), 0.0) * -float(HEARTBEATS_MISSED))
    heard = Q(heartbeat_at__gte=UtcNowPlus(-silent_seconds)) | Q(heartbeat_at__gte=own)
    return Worker.objects.using(using).filter(heard, stopped_at__isnull=True)


def silent(silent_seconds: float, *, using: str) -> QuerySet[Worker]:
    """The workers that have not stopped and are silent, by retire_silent()'s definition; the longest silent first."""
    own = UtcNowPlus(Coalesce(F("heartbeat_seconds"), 0.0) * -float(HEARTBEATS_MISSED))
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True, heartbeat_at__lt=UtcNowPlus(-silent_seconds))
    return rows.filter(heartbeat_at__lt=own).order_by("heartbeat_at")


def retire_silent(silent_seconds: float, *, using: str) -> int:
    """Mark workers without a heartbeat for `silent_seconds` and for HEARTBEATS_MISSED of their own; the number."""
    return retry_transient("housekeeping", lambda: _retire_silent(using).change(seconds=-silent_seconds), using=using)


@cache
def _retire_silent(using: str) -> Prepared:
    own = UtcNowPlus(Coalesce(F("heartbeat_seconds"), 0.0) * -float(HEARTBEATS_MISSED))
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True, heartbeat_at__lt=UtcNowPlus(_SECONDS))
    return prepare_change(rows.filter(heartbeat_at__lt=own), {"stopped_at": UtcNow(), "stop_reason": SILENT})


@dataclass(frozen=True, slots=True)
class Stacks:
    """Where the threads of a worker were, and the age of its answer in seconds."""

    worker: str
    age_seconds: float
    content: JSON


def ask_stacks(names: Sequence[str], *, using: str) -> None:
    """Ask these workers for the stacks of their threads. One UPDATE; answers come within seconds."""
    rows = Worker.objects.using(using).filter(name__in=names, stopped_at__isnull=True)
    rows.update(stacks_asked_at=UtcNow())


def stacks_asked(names: Sequence[str], *, using: str) -> list[str]:
    """Those of these workers that were asked and have not answered. One statement."""
    rows = Worker.objects.using(using).filter(name__in=names, stacks_asked_at__isnull=False)
    return list(rows.values_list("name", flat=True))


def write_stacks(name: str, content: JSON, *, using: str) -> None:
    """Write the answer of a worker."""
    rows = Worker.objects.using(using).filter(name=name)
    change = {"stacks": content, "stacks_at": UtcNow(), "stacks_asked_at": None}
    retry_transient("housekeeping", lambda: rows.update(**change), using=using)


def stacks_of(names: Sequence[str], seconds: float, *, using: str) -> list[Stacks]:
    """The answers of these workers in the last `seconds`. One statement."""
    rows = Worker.objects.using(using).filter(name__in=names, stacks_at__gte=UtcNowPlus(-seconds)).order_by("name")
    found = rows.values_list("name", "stacks", Selected("stacks_at"), Selected(UtcNow()))
    return [Stacks(name, max(0.0, (now - at).total_seconds()), content) for name, content, at, now in found]


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
