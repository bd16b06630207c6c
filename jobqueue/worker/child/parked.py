"""Jobs that are put back without an attempt: for a lock that is not free, or for workers that know their task."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from jobqueue.durations import format_seconds
from jobqueue.tasks import registry
from jobqueue.tasks.versions import missing_version
from jobqueue.transitions import Lease

logger = logging.getLogger("jobqueue.worker")

#: log a job that has not got its lock for this long, and again each time as much time has passed
ALARM_SECONDS = 600.0
_KEPT_MAX = 10_000
#: how long a job stays due for other workers if its task is not known here, and how often this process looks meanwhile
LEFT_SECONDS, LOOK_SECONDS = 5.0, 1.0
#: then it is put back for so long: the shorter, the sooner a busy worker that knows the task finds it due again
UNKNOWN_SECONDS, UNKNOWN_MAX_SECONDS = 10.0, 60.0
_PARKS_PER_SECOND = 20  # of one process: many jobs are put back for longer
_keeping = threading.Lock()
#: by database and job: when it was first put back, when it was last logged, when it was last seen
_parked: dict[tuple[str, int], list[float]] = {}


def put_back(using: str, job_id: int, error: BaseException) -> None:
    """Log a job that did not get its lock, if this process has put it back for ALARM_SECONDS."""
    now = time.monotonic()
    with _keeping:
        times = _parked.get((using, job_id))
        # It was not seen for long: it has run meanwhile, or other workers had it.
        if times is None or now - times[2] > ALARM_SECONDS:
            if len(_parked) >= _KEPT_MAX:
                _parked.clear()
            _parked[using, job_id] = [now, now, now]
            return
        times[2] = now
        if now - times[1] < ALARM_SECONDS:
            return
        times[1], waited = now, now - times[0]
    logger.warning(
        "job %d has not got its lock for %s: %s It is put back every few seconds, without using an attempt. See who "
        "holds the lock with `jobs locks`, cancel the job, or give such jobs expires_at",
        job_id,
        format_seconds(waited),
        error,
    )


def ran(using: str, job_id: int) -> None:
    """Forget a job that has got its lock or has ended."""
    if _parked:
        with _keeping:
            _parked.pop((using, job_id), None)


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


_parks: deque[float] = deque()


def unknown_seconds(lease: Lease) -> float:
    """For how long to put back a job that this process cannot run: longer, the more there are and the older it is."""
    now, age = time.monotonic(), (lease.locked_at - lease.created_at).total_seconds()
    with _keeping:
        _parks.append(now)
        while _parks[0] < now - UNKNOWN_MAX_SECONDS:
            _parks.popleft()
        many = len(_parks) / _PARKS_PER_SECOND
    return min(UNKNOWN_MAX_SECONDS, max(UNKNOWN_SECONDS + many, age / 10))
