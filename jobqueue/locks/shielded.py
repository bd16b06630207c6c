"""Steps of coroutines that must be done though the coroutine is canceled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from asgiref.sync import sync_to_async

T = TypeVar("T")


async def run_shielded(step: Callable[..., T], *args: object) -> T:
    """What `step` returns in the thread of sync_to_async; the caller's cancelation goes on when it has been done.

    Canceled by itself, sync_to_async drops a step that waits for its thread.
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
            # The end of a loop cancels every task of it.
            doing = asyncio.ensure_future(sync_to_async(run)())
    if canceled is None:
        return doing.result()
    if not doing.cancelled() and doing.exception() is not None:
        canceled.add_note(f"Also: {doing.exception()}")
    raise canceled
