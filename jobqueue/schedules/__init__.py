"""Schedules: tasks that are enqueued at the ticks of a cron expression or an interval, once in all workers.

All functions run in the caller's transaction and work in all processes within a second of its commit.
"""

from jobqueue.schedules.by_hand import disable, enable, run_now
from jobqueue.schedules.listing import Known, known, preview

__all__ = ["Known", "disable", "enable", "known", "preview", "run_now"]
