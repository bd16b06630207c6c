"""Schedules: tasks that are enqueued at the ticks of a cron expression or an interval, once in all workers.

All functions run in the caller's transaction and work in all processes within a second of its commit. They are imported
when they are first used: `from jobqueue import schedule` must work before the app registry is ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobqueue import import_on_first_use

if TYPE_CHECKING:
    from jobqueue.schedules.editing import disable, enable, run_now
    from jobqueue.schedules.listing import Known, known, preview

__all__ = ["Known", "disable", "enable", "known", "preview", "run_now"]

__getattr__ = import_on_first_use(
    __name__,
    {"listing": "Known known preview", "editing": "disable enable run_now"},
)
