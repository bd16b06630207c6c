"""A queue whose consumer waits with a timeout."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Any thread or signal handler puts items, and one thread takes them.

    Not SimpleQueue.get(timeout=): before Python 3.13 it waits for ever if a signal interrupts it as its time runs out.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()
        self._filled = threading.Lock()
        self._filled.acquire()

    def put(self, *items: T) -> None:
        """Add `items` and wake the thread that waits. Safe in a signal handler."""
        for item in items:
            self._items.put(item)
        # It is released already: the next take() finds these items, too.
        with suppress(RuntimeError):
            self._filled.release()

    def take(self, seconds: float) -> list[T]:
        """Return all items as soon as there is one; [] after `seconds`."""
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
