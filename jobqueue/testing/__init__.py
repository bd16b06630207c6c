"""For the tests of projects that use jobqueue. Nothing here is for production, and nothing there imports it.

The names are loaded on first use, so that the pytest plugin can be loaded before Django is set up.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobqueue.testing.alone import run_task
    from jobqueue.testing.asserting import assert_enqueued, refute_enqueued
    from jobqueue.testing.clock import travel
    from jobqueue.testing.draining import Drained, drain
    from jobqueue.testing.injecting import inject
    from jobqueue.testing.inline import run_inline
    from jobqueue.testing.leases import expire_lease
    from jobqueue.testing.repeating import assert_idempotent
    from jobqueue.testing.runs import JobRun

__all__ = [
    "Drained",
    "JobRun",
    "assert_enqueued",
    "assert_idempotent",
    "drain",
    "expire_lease",
    "inject",
    "refute_enqueued",
    "run_inline",
    "run_task",
    "travel",
]

_HOMES = {
    "Drained": "draining",
    "JobRun": "runs",
    "assert_enqueued": "asserting",
    "assert_idempotent": "repeating",
    "drain": "draining",
    "expire_lease": "leases",
    "inject": "injecting",
    "refute_enqueued": "asserting",
    "run_inline": "inline",
    "run_task": "alone",
    "travel": "clock",
}


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
