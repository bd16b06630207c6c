"""Opens lanes that were left standing still."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from jobqueue.conf import Settings
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import LockLost, LockNotAcquired
from jobqueue.locks import LeaseLock
from jobqueue.ordering import lanes
from jobqueue.ordering.lanes import LOWEST
from jobqueue.ordering.promote import sweep

#: whoever has this lease lock looks at the lanes for all workers of the database
LOCK_NAME = "jobqueue: looks for ordering keys that stand still"
# When the process that looks dies, another one goes on after this time.
LOCK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Keeping:
    """What one pass did."""

    jobs_opened: int


def run_once(settings: Settings, *, using: str) -> Keeping:
    """All lanes, a thousand at a time."""
    opened, after = sweep(LOWEST, using=using)
    while after is not None:
        found, after = sweep(after, using=using)
        opened += found
    return Keeping(opened)


class _Turn(LeaseLock):
    """Not counted: lock statistics are about the locks of the project."""

    _counted = False


class Rounds:
    """Looks at the lanes alone, a thousand at a time, round after round: for every second.

    Of all workers one does so; the others look again when its lease lock has ended. The lock saves work and guards
    nothing: two that look at once do no harm.
    """

    __name__ = "ordering_sweep"

    def __init__(self) -> None:
        self._after: int | None = None
        self._lock: _Turn | None = None

    def run_once(self, settings: Settings, *, using: str) -> Keeping:
        """One look; one index seek where no job has an ordering key, and one more where another worker looks."""
        if not retry_transient(partial(lanes.active, LOWEST, using=using, limit=1), using=using):
            self._lock, self._after = None, None
            return Keeping(0)
        if not self._is_ours(using):
            return Keeping(0)
        opened, self._after = sweep(LOWEST if self._after is None else self._after, using=using)
        return Keeping(opened)

    def _is_ours(self, using: str) -> bool:
        try:
            if self._lock is None:
                # A new one each time: what became of the last one does not matter.
                self._lock = _Turn(LOCK_NAME, LOCK_SECONDS, 0, using).acquire()
            else:
                self._lock.renew()
        except (LockLost, LockNotAcquired):
            self._lock, self._after = None, None
        return self._lock is not None
