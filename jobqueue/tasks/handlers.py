"""@handler: a function that consumes the raw rows of a queue."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

from jobqueue.exceptions import InvalidType, NotSupported
from jobqueue.tasks import registry
from jobqueue.validation import check_int, check_queue

F = TypeVar("F", bound=Callable[..., Any])

BATCH_MAX = 1000


def handler(queue: str, *, batch: int | None = None) -> Callable[[F], F]:
    """Register the decorated function for rows of `queue` that name no task: func(payload) -> JSON result.

    With `batch` (1 to 1000) it is func(leases): a list of up to so many leases. It returns None, a list with a result
    or exception for each lease in their order, or a dict of those by job id; it may raise BatchErrors for some, and
    what else it raises fails all. The rows may come from enqueue() or from plain SQL in any language. Put the function
    into <app>/tasks.py, where workers look. Raises InvalidValue if the queue has a handler already, NotSupported for a
    batch handler that is a coroutine or generator function.
    """
    check_queue(queue)
    if batch is not None:
        check_int(batch, "batch", 1, BATCH_MAX)

    def register(func: F) -> F:
        if not callable(func):
            raise InvalidType(f"@handler({queue!r}) decorates a function, got {type(func).__name__}.")
        if batch is not None:
            _refuse_batches(queue, func)
        registry.add_handler(registry.Handler(queue, func, batch))
        return func

    return register


def _refuse_batches(queue: str, func: Callable[..., Any]) -> None:
    """One call answers for all its jobs at its end; neither of these has an end of a plain call."""
    if iscoroutinefunction(func) or isasyncgenfunction(func):
        raise NotSupported(
            f"@handler({queue!r}, batch=...) takes no coroutine function: a batch runs in a job thread. Nothing was "
            "registered; make it a plain function that calls async_to_sync(...), or drop batch=."
        )
    if isgeneratorfunction(func):
        raise NotSupported(
            f"@handler({queue!r}, batch=...) takes no generator function: nobody would run its body. Nothing was "
            "registered; return a list of results instead of yielding them."
        )
