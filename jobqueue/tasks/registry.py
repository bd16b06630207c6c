"""The tasks and handlers of this process, and @handler. Only these are ever run: no name from the table is imported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import isasyncgenfunction, isgeneratorfunction
from traceback import extract_tb
from typing import TypeVar

from asgiref.sync import iscoroutinefunction
from django.apps import apps

from jobqueue.base.compat import AnyTask, Task
from jobqueue.base.validation import check_int, check_queue, signature_of
from jobqueue.conf import known_tasks
from jobqueue.conf.known_tasks import find_task as find_task
from jobqueue.exceptions import InvalidType, InvalidValue, NotSupported
from jobqueue.failures import dotted_path

logger = logging.getLogger("jobqueue")
F = TypeVar("F", bound=Callable[..., object])

BATCH_MAX = 1000


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that consumes the raw rows of one queue: a payload, or with `batch` up to that many leases."""

    queue: str
    func: Callable[..., object]
    batch: int | None = None


_lock = threading.Lock()
_handlers: dict[str, Handler] = {}
_knows_coroutines = False
#: paths of tasks that were registered neither by django.setup() nor by discover(), so workers may not know them
_late: set[str] = set()
_discovering = False
#: files whose code was running when the import of a tasks module failed
_failed_files: set[str] = set()
_failed_modules: list[str] = []


def add_task(path: str, task: AnyTask) -> None:
    """Register a task under module.qualname and its aliases. Raises InvalidValue for an alias of another task."""
    if known_tasks.add_task(path, task):
        _note_kind(task.func)
        if apps.ready and not _discovering:
            _late.add(path)


def late_tasks() -> list[AnyTask]:
    """The tasks whose modules were imported by something else than django.setup() and discover()."""
    return [task for task in known_tasks.all_tasks() if task.module_path in _late]


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


def handler(queue: str, *, batch: int | None = None) -> Callable[[F], F]:
    """Register the decorated function for rows of `queue` that name no task: func(payload) -> JSON result.

    With `batch` (1 to 1000) it is func(leases), called with up to that many leases. It returns None, a list with a
    result or exception for each lease in their order, or a dict of those by job id. It may raise BatchErrors for some;
    any other exception fails all. The rows may come from enqueue() or from plain SQL in any language. Put the function
    into <app>/tasks.py, where workers look. Raises InvalidValue if the queue has a handler already, NotSupported for a
    generator function and for a batch handler that is a coroutine function, InvalidType for one that does not take one
    argument.
    """
    check_queue(queue)
    if batch is not None:
        check_int(batch, "batch", 1, BATCH_MAX)

    def register(func: F) -> F:
        if not callable(func) or isinstance(func, Task):
            raise InvalidType(f"@handler({queue!r}) decorates a function, got {type(func).__name__}.")
        _check_parameters(queue, func, "payload" if batch is None else "leases")
        if batch is not None:
            _refuse_batches(queue, func)
        _refuse_generators(queue, func)
        add_handler(Handler(queue, func, batch))
        return func

    return register


def _check_parameters(queue: str, func: Callable[..., object], given: str) -> None:
    # What is called, and not what a decorator has wrapped.
    called = signature_of(func)
    if called is None:
        return
    try:
        called.bind(given)
    except TypeError as error:
        raise InvalidType(
            f"@handler({queue!r}) calls the function with one argument, {given}, and "
            f"{getattr(func, '__qualname__', func)}{called} does not take it: {error}. Nothing was registered."
        ) from None


def _refuse_generators(queue: str, func: Callable[..., object]) -> None:
    if isgeneratorfunction(func) or isasyncgenfunction(func):
        raise NotSupported(
            f"@handler({queue!r}) takes no generator function: nobody would run its body. Nothing was registered; "
            "return a list of results instead of yielding them."
        )


def _refuse_batches(queue: str, func: Callable[..., object]) -> None:
    """A batch is one plain call that returns the results of all its jobs."""
    if iscoroutinefunction(func) or isasyncgenfunction(func):
        raise NotSupported(
            f"@handler({queue!r}, batch=...) takes no coroutine function: a batch runs in a job thread. Nothing was "
            "registered; make it a plain function that calls async_to_sync(...), or drop batch=."
        )


def find_handler(queue: str) -> Handler | None:
    """The handler of `queue`, or None."""
    return _handlers.get(queue)


def knows_coroutines() -> bool:
    """Whether a registered task or handler is a coroutine function."""
    return _knows_coroutines


def _note_kind(func: Callable[..., object]) -> None:
    global _knows_coroutines
    _knows_coroutines = _knows_coroutines or iscoroutinefunction(func)


def names() -> tuple[list[str], list[str]]:
    """The registered task paths and the queues with handlers, sorted."""
    return [task.module_path for task in known_tasks.all_tasks()], sorted(_handlers)


def discover() -> Iterator[str]:
    """Import <app>/tasks.py of every installed app and register its tasks; yields the names of these modules.

    A module that cannot be imported is logged with its traceback, and is one of failed_modules().
    """
    _failed_files.clear()
    _failed_modules.clear()
    for config in apps.get_app_configs():
        name = f"{config.name}.tasks"
        if config.name in ("django_tasks", "jobqueue") or find_spec(name) is None:
            continue
        try:
            _register_all_of(name)
        except BaseException as error:
            _failed_files.update(_files_of(error))
            _failed_modules.append(name)
            logger.exception("%s could not be imported, so its tasks are not known here. Correct the error", name)
        else:
            yield name


def failed_modules() -> list[str]:
    """The modules that could not be imported in discover()."""
    return list(_failed_modules)


def failed_files() -> frozenset[str]:
    """The files that took part in the imports that failed in discover(); one of them has the error."""
    return frozenset(_failed_files)


def _files_of(error: BaseException) -> set[str]:
    files = {frame.filename for frame in extract_tb(error.__traceback__)}
    if isinstance(error, SyntaxError) and error.filename:
        files.add(error.filename)
    return files


def _register_all_of(name: str) -> None:
    global _discovering
    _discovering = True
    try:
        module = import_module(name)
        # A task of another backend does not register itself, and may be enqueued here with using().
        for task in [value for value in vars(module).values() if isinstance(value, Task)]:
            if find_task(task.module_path) is None:
                add_task(task.module_path, task)
    finally:
        _discovering = False
