"""Helpers for the tests of projects that use jobqueue. Production code never imports this package.

Public names are imported on first use, so that pytest can load the plugin before Django is set up. The helpers run jobs
in the thread of the test, through the same functions as a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobqueue import import_on_first_use

if TYPE_CHECKING:
    from jobqueue.testing.asserting import assert_enqueued, refute_enqueued
    from jobqueue.testing.clock import travel
    from jobqueue.testing.draining import drain, fire, run_inline, ticks
    from jobqueue.testing.injecting import inject
    from jobqueue.testing.runs import Drained, JobRun, assert_idempotent, expire_lease, run_task

__all__ = [
    "Drained",
    "JobRun",
    "assert_enqueued",
    "assert_idempotent",
    "drain",
    "expire_lease",
    "fire",
    "inject",
    "refute_enqueued",
    "run_inline",
    "run_task",
    "ticks",
    "travel",
]

__getattr__ = import_on_first_use(
    __name__,
    {
        "asserting": "assert_enqueued refute_enqueued",
        "clock": "travel",
        "draining": "drain fire run_inline ticks",
        "injecting": "inject",
        "runs": "Drained JobRun assert_idempotent expire_lease run_task",
    },
)
