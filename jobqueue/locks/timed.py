"""What locks have in common that end by themselves and have a fence."""

from __future__ import annotations

import time
from typing import Self

from asgiref.sync import sync_to_async

from jobqueue.exceptions import LockNotHeld
from jobqueue.locks.lock import Lock
from jobqueue.locks.outliving import warn_if_outlived
from jobqueue.names import check_seconds


class TimedLock(Lock):
    """A lock that ends `ttl_seconds` after it was acquired or renewed."""

    ends = "It ends by itself when its time has run out."

    def __init__(self, name: str, ttl_seconds: float, timeout_seconds: float | None) -> None:
        super().__init__(name, timeout_seconds)
        self.ttl_seconds = check_seconds(ttl_seconds, "ttl_seconds")
        self._fence: int | None = None
        self._ends_at = 0.0

    @property
    def fence(self) -> int:
        """The number of this holder: larger than that of every holder before. It stays readable after the release."""
        if self._fence is None:
            raise LockNotHeld(f"{self.kind} {self.name!r} has no fence before it is acquired.")
        return self._fence

    @property
    def remaining_seconds(self) -> float:
        """How much time is surely left, by this process's monotonic clock; 0 when the lock may have run out."""
        return max(0.0, self._ends_at - time.monotonic()) if self._held else 0.0

    def acquire(self) -> Self:
        """Wait up to timeout_seconds (None = for ever, 0 = one try) and hold the lock. Raises LockNotAcquired."""
        warn_if_outlived(self.kind, self.name, self.ttl_seconds)
        return super().acquire()

    async def aacquire(self) -> Self:
        """acquire() for coroutines: each try runs in a thread, the pauses on the event loop."""
        warn_if_outlived(self.kind, self.name, self.ttl_seconds)
        return await super().aacquire()

    def renew(self, ttl_seconds: float | None = None) -> None:
        """Let the lock end `ttl_seconds` (default: as acquired) from now. Raises LockLost if it has ended already."""
        raise NotImplementedError

    async def arenew(self, ttl_seconds: float | None = None) -> None:
        """renew() for coroutines."""
        await sync_to_async(self.renew)(ttl_seconds)
