"""Log a warning about jobs that are put back for a lock again and again, because nothing else ends that."""

from __future__ import annotations

import logging
import threading
import time

from jobqueue.durations import format_seconds

logger = logging.getLogger("jobqueue.worker")

#: log a job that has not got its lock for this long, and again each time as much time has passed
ALARM_SECONDS = 600.0
_KEPT_MAX = 10_000
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
