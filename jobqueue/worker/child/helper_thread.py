"""A thread that does half of what another thread has to do, on a connection of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
logger = logging.getLogger("jobqueue.worker")


class HelperThread(Generic[T]):
    """Starts its thread with the first work. A daemon: a server that does not answer must not keep a process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._todo: SimpleQueue[Callable[[], T]] = SimpleQueue()
        self._done: SimpleQueue[T | None] = SimpleQueue()
        self._started = False

    def begin(self, work: Callable[[], T]) -> bool:
        """Have `work` done meanwhile; False if there is no room for a thread. One at a time: end() comes first."""
        if not self._started:
            try:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            except RuntimeError:
                return False
            self._started = True
        self._todo.put(work)
        return True

    def end(self) -> T | None:
        """Wait for it; what it gave, None if it raised."""
        return self._done.get()

    def _work(self) -> None:
        while True:
            work, found = self._todo.get(), None
            try:
                found = work()
            except BaseException:
                # SystemExit of a signal's receiver included: somebody waits for the end.
                with suppress(Exception):  # of a log handler
                    logger.exception("%s met an unexpected error and goes on", self._name)
            self._done.put(found)
