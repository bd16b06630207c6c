"""Jobs whose task this process does not know: they are left, or put back, for workers that know it."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable

from jobqueue.tasks import registry
from jobqueue.tasks.versions import missing_version
from jobqueue.transitions import Lease

#: how long a job stays due for other workers if its task is not known here, and how often this process looks meanwhile
LEFT_SECONDS, LOOK_SECONDS = 5.0, 1.0
#: then it is put back for so long: the shorter, the sooner a busy worker that knows the task finds it due again
UNKNOWN_SECONDS, UNKNOWN_MAX_SECONDS = 10.0, 60.0
_SNOOZES_PER_SECOND = 20  # of one process: many jobs are put back for longer
_snoozing = threading.Lock()
#: when jobs were put back
_snoozed_at: deque[float] = deque()


class UnknownTasks:
    """Leaves jobs that this process cannot run to workers that can: it takes none of their time and of their jobs.

    Behind such jobs may be others that this process knows, so it cannot leave them for ever.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._look_at: dict[str, float] = {}

    def leaves(self, queue: str) -> bool:
        """Whether to ask `queue` later: it had nothing but jobs to leave a moment ago."""
        return bool(self._look_at) and self._clock() < self._look_at.get(queue, 0.0)

    def sift(self, leases: list[Lease]) -> tuple[list[Lease], list[Lease]]:
        """Return the leases of one queue that are to begin here, and those to give back at once, which stay due."""
        left = [lease for lease in leases if _is_new(lease) and not _can_run(lease)]
        if not left:
            return leases, left
        if len(left) == len(leases):
            now = self._clock()
            self._look_at = {queue: until for queue, until in self._look_at.items() if until > now}
            self._look_at[left[0].queue] = now + LOOK_SECONDS * random.uniform(0.8, 1.2)
        return [lease for lease in leases if lease not in left], left


def _is_new(lease: Lease) -> bool:
    return (lease.locked_at - lease.run_at).total_seconds() < LEFT_SECONDS


def _can_run(lease: Lease) -> bool:
    if lease.task is None:
        return registry.find_handler(lease.queue) is not None
    task = registry.find_task(lease.task)
    if task is None:
        return False
    version = lease.payload.get("version") if isinstance(lease.payload, dict) else None
    return not isinstance(version, int) or missing_version(task, version) is None


def snooze_seconds(lease: Lease) -> float:
    """For how long to put back a job that this process cannot run: longer, the more there are and the older it is."""
    now, age = time.monotonic(), (lease.locked_at - lease.created_at).total_seconds()
    with _snoozing:
        _snoozed_at.append(now)
        while _snoozed_at[0] < now - UNKNOWN_MAX_SECONDS:
            _snoozed_at.popleft()
        many = len(_snoozed_at) / _SNOOZES_PER_SECOND
    return min(UNKNOWN_MAX_SECONDS, max(UNKNOWN_SECONDS + many, age / 10))
