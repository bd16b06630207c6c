"""Deliver signals in a thread of their own: a receiver that takes its time keeps nobody from more urgent duties."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from django.db import close_old_connections

logger = logging.getLogger("jobqueue.worker")

LAST_SECONDS = 3.0  # the supervisor waits 5 s for its keeper


class Announcer:
    """Calls what it is given, in order; the process need not wait for it before its end()."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._given = self._called = 0
        self._thread: threading.Thread | None = None

    def give(self, delivery: Callable[[], None]) -> None:
        """Have `delivery` called soon."""
        if self._thread is None:
            # Late: most keepers never have anything to tell.
            self._thread = threading.Thread(target=self._work, name="announcer", daemon=True)
            self._thread.start()
        self._given += 1
        self._todo.put(delivery)

    def end(self) -> None:
        """Wait a little for what is not called yet."""
        until = time.monotonic() + LAST_SECONDS
        while self._called < self._given and time.monotonic() < until:
            time.sleep(0.01)

    def _work(self) -> None:
        while True:
            delivery = self._todo.get()
            try:
                delivery()
            except BaseException:
                logger.exception("a receiver of a signal ended unexpectedly")
            finally:
                close_old_connections()
                self._called += 1
