"""A job queue and lock toolkit for Django, in the database you already run.

The public names are loaded on first use, so this module can be imported before the app registry is ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobqueue.context.job_context import current_job
    from jobqueue.producer.enqueueing import enqueue, enqueue_many
    from jobqueue.tasks.definition import task
    from jobqueue.tasks.handlers import handler

__version__ = "0.1.0"

__all__ = ["__version__", "current_job", "enqueue", "enqueue_many", "handler", "task"]

_HOMES = {
    "current_job": "jobqueue.context.job_context",
    "enqueue": "jobqueue.producer.enqueueing",
    "enqueue_many": "jobqueue.producer.enqueueing",
    "handler": "jobqueue.tasks.handlers",
    "task": "jobqueue.tasks.definition",
}


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
