"""The worker table: who runs, since when, and when it was last heard of."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import jobqueue
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.failures import storable
from jobqueue.models import Worker
from jobqueue.signals import send, worker_started, worker_stopped


def register(name: str, *, supervisor_pid: int, boot_id: str, queues: str, concurrency: int, using: str) -> None:
    """Add the row of this process."""
    row = Worker(
        name=name,
        host=storable(socket.gethostname(), 255),
        pid=os.getpid(),
        supervisor_pid=supervisor_pid,
        boot_id=boot_id,
        queues=storable(queues, 1000),
        concurrency=concurrency,
        version=jobqueue.__version__,
    )
    retry_transient(lambda: row.save(using=using, force_insert=True), using=using)
    send(worker_started, Worker, name=name, using=using)


def renew(names: Sequence[str], *, using: str) -> None:
    """Say that these workers are alive."""
    rows = Worker.objects.using(using).filter(name__in=names)
    retry_transient(lambda: rows.update(heartbeat_at=UtcNow()), using=using)


def retire(name: str, reason: str, *, using: str) -> None:
    """Say that a worker has ended, once."""
    rows = Worker.objects.using(using).filter(name=name, stopped_at__isnull=True)
    retry_transient(lambda: rows.update(stopped_at=UtcNow(), stop_reason=storable(reason, 200)), using=using)
    send(worker_stopped, Worker, name=name, reason=reason, using=using)


def retire_silent(silent_seconds: float, *, using: str) -> int:
    """Mark workers that have not been heard of for `silent_seconds` as ended; how many."""
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True, heartbeat_at__lt=UtcNowPlus(-silent_seconds))
    return retry_transient(lambda: rows.update(stopped_at=UtcNow(), stop_reason="silent: no heartbeat"), using=using)
