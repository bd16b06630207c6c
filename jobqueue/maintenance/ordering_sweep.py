"""Promotes the next job of ordering keys that stalled after a crash."""

from __future__ import annotations

import math
import time
from collections import Counter
from functools import partial

from jobqueue.conf import Settings
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import LockLost, LockNotAcquired
from jobqueue.locks.lease import LeaseLock, uncounted_lock
from jobqueue.ordering import lanes
from jobqueue.ordering.lanes import LOWEST
from jobqueue.ordering.promote import sweep

#: the worker that holds this lease lock sweeps for all workers of the database
LOCK_NAME = "jobqueue: ordering sweep"
# When the process of that worker dies, another one sweeps after this time.
LOCK_SECONDS = 5.0


class OrderingSweep:
    """Sweeps a thousand lanes per call, round after round; called every second.

    One worker sweeps; the others try again when its lease lock has ended. The lock only saves work: two sweeps at the
    same time do no harm.
    """

    def __init__(self) -> None:
        self._after: int | None = None
        self._lock: LeaseLock | None = None

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Sweep the next lanes: one index seek without ordering keys, two where another worker sweeps."""
        if not retry_transient("promote", partial(lanes.active, LOWEST, using=using, limit=1), using=using):
            self._lock, self._after = None, None
            return Counter()
        if not self._is_ours(using):
            return Counter()
        return Counter(jobs_opened=self._sweep_next(using))

    def sweep_all(self, settings: Settings, *, using: str, seconds: float = math.inf) -> Counter[str]:
        """Sweep all lanes for about `seconds`, whether another process does or not; the next call goes on there."""
        end, opened = time.monotonic() + seconds, self._sweep_next(using)
        while self._after is not None and time.monotonic() < end:
            opened += self._sweep_next(using)
        return Counter(jobs_opened=opened)

    def _sweep_next(self, using: str) -> int:
        opened, self._after = sweep(LOWEST if self._after is None else self._after, using=using)
        return opened

    def _is_ours(self, using: str) -> bool:
        try:
            if self._lock is None:
                # A new lock each time: the outcome of the last one does not matter.
                self._lock = uncounted_lock(LOCK_NAME, LOCK_SECONDS, using).acquire()
            else:
                self._lock.renew()
        except (LockLost, LockNotAcquired):
            self._lock, self._after = None, None
        return self._lock is not None
