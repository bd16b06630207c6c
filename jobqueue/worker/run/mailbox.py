"""Hand things to a thread that waits for them, for no longer than it wants."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Any thread or signal handler puts, one thread takes.

    Not SimpleQueue.get(timeout=): before Python 3.13 it waits for ever if a signal interrupts it as its time runs out.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()
        self._filled = threading.Lock()
        self._filled.acquire()

    def put(self, *items: T) -> None:
        """Add `items`, and wake who waits. Safe in a signal handler."""
        for item in items:
            self._items.put(item)
        # Released already: whoever takes next finds this item too.
        with suppress(RuntimeError):
            self._filled.release()

    def take(self, seconds: float) -> list[T]:
        """All that is there, as soon as there is something; [] after `seconds` without."""
        deadline = time.monotonic() + seconds
        while self._filled.acquire(timeout=max(0.0, deadline - time.monotonic())):
            if found := self._all():
                return found
        return self._all()

    def _all(self) -> list[T]:
        found: list[T] = []
        with suppress(Empty):
            while True:
                found.append(self._items.get_nowait())
        return found
