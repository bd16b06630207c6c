"""A job queue and lock toolkit for Django, in the database you already run.

Besides the rooms there are public modules: allocate (take), bulk, counter and fencing for tables of the project,
transactions (retry_transaction, forbid_outside_calls), backends (Django Tasks), signals, exceptions and backoff; conf
holds all settings, checks the system checks. The public names are imported on first use, so this module can be imported
before the app registry is ready.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobqueue.context.job_context import current_job
    from jobqueue.groups.making import group
    from jobqueue.groups.workflows import workflow
    from jobqueue.producer.enqueueing import enqueue, enqueue_many
    from jobqueue.schedules.declaring import schedule
    from jobqueue.tasks.definition import task
    from jobqueue.tasks.registry import handler

__version__ = "0.1.0"

__all__ = ["__version__", "current_job", "enqueue", "enqueue_many", "group", "handler", "schedule", "task", "workflow"]


def import_on_first_use(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The __getattr__ of a package. `modules`: the public names in each of its modules, separated by spaces."""
    places = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


__getattr__ = import_on_first_use(
    __name__,
    {
        "context.job_context": "current_job",
        "producer.enqueueing": "enqueue enqueue_many",
        "groups.making": "group",
        "groups.workflows": "workflow",
        "schedules.declaring": "schedule",
        "tasks.definition": "task",
        "tasks.registry": "handler",
    },
)
