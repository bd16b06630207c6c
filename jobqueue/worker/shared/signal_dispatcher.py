"""Deliver Django signals in a thread of their own, so that a slow receiver delays no other work."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from jobqueue.worker.shared.cleanup import clean_connections

logger = logging.getLogger("jobqueue.worker")

STUCK_SECONDS = 3.0  # a delivery that takes longer hangs: nothing waits for it any more
BACKLOG_MAX = 100


class SignalDispatcher:
    """Calls deliveries in order. They may be lost at the end of the process, unless it calls end()."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._given = self._called = self._dropped = 0
        self._since = 0.0
        self._thread: threading.Thread | None = None

    @property
    def backlog(self) -> int:
        """How many deliveries have not ended."""
        return self._given - self._called

    def start(self) -> None:
        """Start the thread before the first delivery. Raises RuntimeError if the system has no room for it."""
        thread = threading.Thread(target=self._work, name="signals", daemon=True)
        thread.start()
        self._thread = thread

    def dispatch(self, delivery: Callable[[], object]) -> None:
        """Have `delivery` called soon; at once if the system has no room for the thread.

        While a receiver hangs and many deliveries wait, it is dropped, and the first one that is dropped is logged.
        """
        if self._thread is None:
            try:
                self.start()
            except RuntimeError:
                delivery()
                return
        if self.backlog > BACKLOG_MAX and self._is_stuck():
            self._dropped += 1
            if self._dropped == 1:
                logger.error("a receiver of a signal hangs; signals are dropped until it returns, jobs continue")
            return
        self._given += 1
        self._todo.put(delivery)

    def keep_up(self) -> None:
        """Wait until at most BACKLOG_MAX deliveries wait; not while a receiver hangs."""
        while self.backlog > BACKLOG_MAX and not self._is_stuck():
            time.sleep(0.002)

    def end(self, most_seconds: float = math.inf) -> None:
        """Wait for the deliveries, at most `most_seconds`; not while a receiver hangs."""
        until = time.monotonic() + most_seconds
        while self.backlog and not self._is_stuck() and time.monotonic() < until:
            time.sleep(0.01)

    def _is_stuck(self) -> bool:
        return 0.0 < self._since < time.monotonic() - STUCK_SECONDS

    def _work(self) -> None:
        while True:
            delivery = self._todo.get()
            self._since = time.monotonic()
            try:
                delivery()
            except BaseException:
                logger.exception("a receiver of a signal ended unexpectedly")
            finally:
                del delivery  # it may hold the error of a job
                clean_connections()
                self._since = 0.0
                self._called += 1
            if self._dropped:
                logger.warning("%d signals were dropped while a receiver hung", self._dropped)
                self._dropped = 0
