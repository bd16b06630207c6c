"""The asyncio tasks that a coroutine job has started: on a loop shared by many jobs they must not outlive it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

Tasks = set["asyncio.Task[Any]"]

_started: ContextVar[Tasks] = ContextVar("jobqueue_started_tasks")


def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """The loop's task factory: a task that is started inside a job is remembered for its end."""
    task = asyncio.Task(coro, loop=loop, **options)
    started = _started.get(None)
    if started is not None:
        started.add(task)
        task.add_done_callback(started.discard)
    return task


def collect() -> Tasks:
    """From here on tasks started in this context are in the set that is returned, until they are done."""
    started: Tasks = set()
    _started.set(started)
    return started


async def end(started: Tasks) -> None:
    """Cancel what still runs and wait for it, as asyncio.run() does for a program."""
    left = list(started)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
