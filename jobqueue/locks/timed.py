"""TimedLock: locks that end after a time to live and have a fence; a warning when a job may run for longer."""

from __future__ import annotations

import logging
import time

from asgiref.sync import sync_to_async

from jobqueue.conf import load
from jobqueue.conf.known_tasks import spec_at
from jobqueue.context.job_context import current_job
from jobqueue.exceptions import LockNotHeld
from jobqueue.locks.entries import Entry
from jobqueue.locks.lock import Lock
from jobqueue.lockstats import recorder
from jobqueue.lockstats.tables import Finding
from jobqueue.models import LockFinding
from jobqueue.validation import check_seconds

logger = logging.getLogger("jobqueue.locks")

_WARNED_MAX = 1000
#: (task or queue, time to live) that were logged
_warned: set[tuple[str, str]] = set()


class TimedLock(Lock):
    """A lock that ends `ttl_seconds` after it was acquired or renewed."""

    ends = "It ends by itself after its time to live."

    def __init__(self, name: str, ttl_seconds: float, timeout_seconds: float | None) -> None:
        super().__init__(name, timeout_seconds)
        self.ttl_seconds = check_seconds(ttl_seconds, "ttl_seconds")

    @property
    def fence(self) -> int:
        """The number of this holder, larger than that of every earlier holder. It stays readable after the release."""
        entry = self._entries.find()
        if entry is None or entry.fence is None:
            raise LockNotHeld(f"{self.kind} {self.name!r} has no fence before this thread or task has acquired it.")
        return entry.fence

    @property
    def remaining_seconds(self) -> float:
        """The time for which the lock is certainly held, by this process's clock; 0 when it may have ended."""
        entry = self._entries.find()
        return max(0.0, entry.ends_at - time.monotonic()) if entry is not None and entry.held else 0.0

    def _prepare(self, entry: Entry) -> None:
        warn_of_short_ttl(self.kind, self.name, self.ttl_seconds)

    def renew(self, ttl_seconds: float | None = None) -> None:
        """Let the lock end `ttl_seconds` (default: as acquired) from now. Raises LockLost if it has ended already.

        No background thread does this: a body that hangs must lose its lock.
        """
        self._renew(self._require_held("renew"), ttl_seconds)

    async def arenew(self, ttl_seconds: float | None = None) -> None:
        """renew() for coroutines."""
        await sync_to_async(self._renew)(self._require_held("renew"), ttl_seconds)

    def _renew(self, entry: Entry, ttl_seconds: float | None) -> None:
        self._refuse(entry, "renew")
        seconds = self.ttl_seconds if ttl_seconds is None else check_seconds(ttl_seconds, "ttl_seconds")
        asked = time.monotonic()
        if not self._prolong(entry, seconds):
            raise self._lose(entry, "its renewal")
        entry.ends_at = asked + seconds

    def _prolong(self, entry: Entry, seconds: float) -> bool:
        """Let the lock end `seconds` from now at the server; False if this entry no longer held it."""
        raise NotImplementedError


def warn_of_short_ttl(kind: str, name: str, ttl_seconds: float) -> None:
    """Warn, once per task and time to live, that the running job may run for longer than this lock lasts.

    Does nothing outside a job, and where neither the task nor JOBQUEUE limits the time of the job.
    """
    job = current_job()
    if job is None:
        return
    spec, settings = spec_at(job.lease.task), load()
    limits = [
        spec.timeout_seconds or settings.timeout_seconds,
        spec.hard_timeout_seconds or settings.hard_timeout_seconds,
    ]
    most = min((seconds for seconds in limits if seconds is not None), default=None)
    subject = (job.lease.task or job.queue, f"{ttl_seconds:g}")
    if most is None or ttl_seconds >= most or subject in _warned or len(_warned) >= _WARNED_MAX:
        return
    _warned.add(subject)
    facts = {"lock": kind, "key": name, "task": subject[0], "ttl_seconds": ttl_seconds, "limit_seconds": most}
    # One row for all workers and keys: the finding is about the task's code.
    recorder.found(Finding(LockFinding.Kind.TTL, f"{subject[0]} {kind} {subject[1]} {most:g}", facts, ttl_seconds))
    logger.warning(
        "%s %r ends %g s after it is acquired, but its job %s may run for %g s: others may get the lock meanwhile. "
        "Raise ttl_seconds, renew() between steps, or lower timeout_seconds. Logged once",
        kind,
        name,
        ttl_seconds,
        subject[0],
        most,
    )
