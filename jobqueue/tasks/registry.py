"""The tasks and handlers this process knows. Nothing else is ever run: no name from the table is imported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.apps import apps

from jobqueue.compat import Task
from jobqueue.exceptions import InvalidValue
from jobqueue.failures import dotted_path

logger = logging.getLogger("jobqueue")


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that consumes raw rows of one queue: one payload, or with `batch` a list of up to so many leases."""

    queue: str
    func: Callable[..., Any]
    batch: int | None = None


_lock = threading.Lock()
_tasks: dict[str, Any] = {}
_aliases: dict[str, Any] = {}
_handlers: dict[str, Handler] = {}
_knows_coroutines = False


def add_task(path: str, task: Any) -> None:
    """Register a task under module.qualname; a reloaded module replaces its own."""
    with _lock:
        known = _tasks.get(path)
        if known is None or known.func is not task.func:
            _tasks[path] = task
            _note_kind(task.func)


def add_alias(path: str, task: Any) -> None:
    """Let jobs of an earlier path run `task`. Raises InvalidValue if the path is another task's alias already."""
    with _lock:
        known = _aliases.get(path)
        if known is not None and known.module_path != task.module_path:
            raise InvalidValue(
                f"{path!r} is an alias of {known.module_path} already, so it cannot be one of {task.module_path}. "
                "A job names one task; take it out of one of the two."
            )
        _aliases[path] = task


def find_task(path: str) -> Any | None:
    """The task registered under `path`, else the one that has it as an alias, or None."""
    return _tasks.get(path) or _aliases.get(path)


def add_handler(handler: Handler) -> None:
    """Register a handler. Raises InvalidValue if another function consumes the queue already."""
    with _lock:
        known = _handlers.get(handler.queue)
        if known and dotted_path(known.func) != dotted_path(handler.func):
            raise InvalidValue(
                f"queue {handler.queue!r} has a handler already: {dotted_path(known.func)}. "
                "A raw row names no function, so a queue has one handler; use another queue, or tasks."
            )
        _handlers[handler.queue] = handler
        _note_kind(handler.func)


def find_handler(queue: str) -> Handler | None:
    """The handler of `queue`, or None."""
    return _handlers.get(queue)


def knows_coroutines() -> bool:
    """Whether any task or handler that was registered is a coroutine function."""
    return _knows_coroutines


def _note_kind(func: Callable[..., Any]) -> None:
    global _knows_coroutines
    _knows_coroutines = _knows_coroutines or iscoroutinefunction(func)


def names() -> tuple[list[str], list[str]]:
    """The registered task paths and the queues with handlers, sorted."""
    return sorted(_tasks), sorted(_handlers)


def discover() -> Iterator[str]:
    """Import <app>/tasks.py of every installed app and register its tasks; the names of the modules that were found.

    A module that cannot be imported is logged with its traceback; its tasks are parked, the others run.
    """
    for config in apps.get_app_configs():
        name = f"{config.name}.tasks"
        if config.name in ("django_tasks", "jobqueue") or find_spec(name) is None:
            continue
        try:
            module = import_module(name)
        except BaseException:
            logger.exception("%s could not be imported; its jobs are parked until a worker can run them", name)
        else:
            # A task of another backend may be sent here with using(); it has not registered itself.
            for task in [value for value in vars(module).values() if isinstance(value, Task)]:
                if find_task(task.module_path) is None:
                    add_task(task.module_path, task)
            yield name
