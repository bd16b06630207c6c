"""The table of workers: which run, since when, and their last heartbeats."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from django.db import IntegrityError
from django.db.models import F, FloatField, Q, QuerySet
from django.db.models.functions import Coalesce

import jobqueue
from jobqueue.db.callers_transaction import send_after_commit
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.expressions import Slot
from jobqueue.db.prepared import Prepared, prepare_change
from jobqueue.db.retry import retry_transient
from jobqueue.failures import storable
from jobqueue.gates.limits import own_limits
from jobqueue.models import Worker
from jobqueue.payload import JSON
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
