"""run_shielded(): finish a step in a thread although the coroutine is canceled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from asgiref.sync import sync_to_async

T = TypeVar("T")


async def run_shielded(step: Callable[..., T], *args: object) -> T:
    """Run `step` in the thread of sync_to_async and return its result; a cancelation is raised after it has run.

    A canceled sync_to_async would drop a step that still waits for its thread.
    """
    begun = False

    def run() -> T:
        nonlocal begun
        begun = True
        return step(*args)

    canceled: asyncio.CancelledError | None = None
    doing = asyncio.ensure_future(sync_to_async(run)())
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError as error:
            canceled = error
        if doing.cancelled() and not begun:
            # The end of an event loop cancels all of its tasks.
            doing = asyncio.ensure_future(sync_to_async(run)())
    if canceled is None:
        return doing.result()
    if not doing.cancelled() and doing.exception() is not None:
        canceled.add_note(f"Also: {doing.exception()}")
    raise canceled
