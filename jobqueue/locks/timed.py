"""What locks have in common that end by themselves and have a fence."""

from __future__ import annotations

import time
from typing import Self

from asgiref.sync import sync_to_async

from jobqueue.exceptions import LockNotHeld
from jobqueue.locks.entries import Entry
from jobqueue.locks.lock import Lock
from jobqueue.locks.outliving import warn_if_outlived
from jobqueue.validation import check_seconds


class TimedLock(Lock):
    """A lock that ends `ttl_seconds` after it was acquired or renewed."""

    ends = "It ends by itself when its time has run out."

    def __init__(self, name: str, ttl_seconds: float, timeout_seconds: float | None) -> None:
        super().__init__(name, timeout_seconds)
        self.ttl_seconds = check_seconds(ttl_seconds, "ttl_seconds")

    @property
    def fence(self) -> int:
        """The number of this holder: larger than that of every holder before. It stays readable after the release."""
        entry = self._entries.find()
        if entry is None or entry.fence is None:
            raise LockNotHeld(f"{self.kind} {self.name!r} has no fence before this thread or task has acquired it.")
        return entry.fence

    @property
    def remaining_seconds(self) -> float:
        """How much time is surely left, by this process's monotonic clock; 0 when the lock may have run out."""
        entry = self._entries.find()
        return max(0.0, entry.ends_at - time.monotonic()) if entry is not None and entry.held else 0.0

    def acquire(self) -> Self:
        """Wait up to timeout_seconds (None = for ever, 0 = one try) and hold the lock. Raises LockNotAcquired."""
        warn_if_outlived(self.kind, self.name, self.ttl_seconds)
        return super().acquire()

    async def aacquire(self) -> Self:
        """acquire() for coroutines: each try runs in a thread, the pauses on the event loop."""
        warn_if_outlived(self.kind, self.name, self.ttl_seconds)
        return await super().aacquire()

    def renew(self, ttl_seconds: float | None = None) -> None:
        """Let the lock end `ttl_seconds` (default: as acquired) from now. Raises LockLost if it has ended already.

        Not done by a thread of ours: a body that hangs must lose its lock.
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
        """Let it end `seconds` from now; False if it was not this entry's any more."""
        raise NotImplementedError
