"""task.enqueue_many(): many calls of one task, for any backend of Django Tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jobqueue.compat import AnyTask, TaskResult
from jobqueue.exceptions import InvalidType


class Call(NamedTuple):
    """The arguments of one call of a task."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def enqueue_many(task: AnyTask, calls: Iterable[Any]) -> list[TaskResult[Any]]:
    """The results of `calls`. A backend that is not ours gets them one by one."""
    backend: Any = task.get_backend()
    given = checked_calls(task, calls)
    if (together := getattr(backend, "enqueue_many", None)) is not None:
        found: list[TaskResult[Any]] = together(task, given)
        return found
    return [backend.enqueue(task, list(call.args), dict(call.kwargs)) for call in given]


async def aenqueue_many(task: AnyTask, calls: Iterable[Any]) -> list[TaskResult[Any]]:
    """enqueue_many() on an event loop."""
    backend: Any = task.get_backend()
    given = checked_calls(task, calls)
    if (together := getattr(backend, "aenqueue_many", None)) is not None:
        found: list[TaskResult[Any]] = await together(task, given)
        return found
    return [await backend.aenqueue(task, list(call.args), dict(call.kwargs)) for call in given]


def checked_calls(task: AnyTask, calls: Iterable[Any]) -> list[Call]:
    """`calls` as arguments. Raises InvalidType for what is neither a tuple or list nor a dict with str keys."""
    if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Iterable):
        raise InvalidType(
            f"enqueue_many() of {task.module_path} takes a list of calls, got {type(calls).__name__}. Nothing was "
            "written; give a tuple of positional arguments or a dict of keyword arguments for each job."
        )
    found = []
    for number, call in enumerate(calls):
        if isinstance(call, (tuple, list)):
            found.append(Call(call, {}))
        elif isinstance(call, dict) and all(isinstance(name, str) for name in call):
            found.append(Call((), call))
        else:
            raise InvalidType(
                f"call {number} of enqueue_many() of {task.module_path} is {call!r:.80}. Nothing was written; each "
                "call is a tuple of positional arguments, as (1,), or a dict of keyword arguments."
            )
    return found
