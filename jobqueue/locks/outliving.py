"""Does the lock end before the job that takes it must? Said once per task in the log, and kept for the lock pages."""

from __future__ import annotations

import logging

from jobqueue.conf import load
from jobqueue.context.job_context import current_job
from jobqueue.lockstats import recorder
from jobqueue.lockstats.tables import Finding
from jobqueue.models import LockFinding
from jobqueue.tasks import registry

logger = logging.getLogger("jobqueue.locks")

_TOLD_MAX = 1000
_told: set[tuple[str, str]] = set()


def warn_if_outlived(kind: str, name: str, ttl_seconds: float) -> None:
    """Warn, once per task and time to live, that the running job may go on for longer than this lock lasts.

    Silent outside a job, and where neither the task nor JOBQUEUE limits its time: then nobody knows.
    """
    job = current_job()
    if job is None:
        return
    task, settings = registry.find_task(job.lease.task) if job.lease.task else None, load()
    limits = [
        getattr(task, "timeout_seconds", None) or settings.timeout_seconds,
        getattr(task, "hard_timeout_seconds", None) or settings.hard_timeout_seconds,
    ]
    most = min((seconds for seconds in limits if seconds is not None), default=None)
    told = (job.lease.task or job.queue, f"{ttl_seconds:g}")
    if most is None or ttl_seconds >= most or told in _told or len(_told) >= _TOLD_MAX:
        return
    _told.add(told)
    facts = {"lock": kind, "key": name, "task": told[0], "ttl_seconds": ttl_seconds, "limit_seconds": most}
    # The same row for all workers and keys: it is about the task's code.
    recorder.found(Finding(LockFinding.Kind.TTL, f"{told[0]} {kind} {told[1]} {most:g}", facts, ttl_seconds))
    logger.warning(
        "%s %r ends %g s after it is acquired, but its job %s may run for %g s: others may get the lock meanwhile. "
        "Raise ttl_seconds, renew() between steps, or lower timeout_seconds. Said once",
        kind,
        name,
        ttl_seconds,
        told[0],
        most,
    )
