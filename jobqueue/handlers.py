"""@handler: a function that consumes the raw rows of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from jobqueue import registry
from jobqueue.exceptions import InvalidType, NotSupported
from jobqueue.names import check_int, check_queue

F = TypeVar("F", bound=Callable[..., Any])


def handler(queue: str, *, batch: int = 1) -> Callable[[F], F]:
    """Register the decorated function for rows of `queue` that name no task: func(payload) -> JSON result.

    The rows may come from enqueue() or from plain SQL in any language. Put it into <app>/tasks.py, where workers
    look. Raises InvalidValue if the queue has a handler already.
    """
    check_queue(queue)
    if check_int(batch, "batch", 1, 1000) > 1:
        raise NotSupported("handler(batch=...): batch handlers are not part of this version; use batch=1.")

    def register(func: F) -> F:
        if not callable(func):
            raise InvalidType(f"@handler({queue!r}) decorates a function, got {type(func).__name__}.")
        registry.add_handler(registry.Handler(queue, func, batch))
        return func

    return register
