"""The asyncio tasks that a coroutine job starts: they must end with it, because many jobs share the loop."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

Tasks = set["asyncio.Task[Any]"]

_started: ContextVar[Tasks] = ContextVar("jobqueue_started_tasks")


def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """The task factory of the loop: remembers the tasks that a job starts."""
    task = asyncio.Task(coro, loop=loop, **options)
    started = _started.get(None)
    if started is not None:
        started.add(task)
        task.add_done_callback(started.discard)
    return task


def collect() -> Tasks:
    """Returns a set that contains the unfinished tasks which this context starts from now on."""
    started: Tasks = set()
    _started.set(started)
    return started


async def end(started: Tasks) -> None:
    """Cancel the tasks that still run and wait for them, as asyncio.run() does for a program."""
    left = list(started)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
