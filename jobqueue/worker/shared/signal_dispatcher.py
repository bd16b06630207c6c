"""Deliver signals in a thread of their own: a receiver that takes its time keeps nobody from more urgent duties."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from jobqueue.worker.shared.cleanup import clean_connections

logger = logging.getLogger("jobqueue.worker")

STUCK_SECONDS = 3.0  # after that long in one delivery nobody waits for it
BACKLOG_MAX = 100


class SignalDispatcher:
    """Calls what it is given, in order; the process need not wait for it before its end()."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._given = self._called = self._dropped = 0
        self._since = 0.0
        self._thread: threading.Thread | None = None

    @property
    def backlog(self) -> int:
        """Deliveries that have not ended."""
        return self._given - self._called

    def start(self) -> None:
        """Start the thread now, not with the first delivery. Raises RuntimeError where there is no room for it."""
        thread = threading.Thread(target=self._work, name="signals", daemon=True)
        thread.start()
        self._thread = thread

    def dispatch(self, delivery: Callable[[], object]) -> None:
        """Have `delivery` called soon; it is dropped, and that logged, while a receiver hangs and many wait for it.

        Where there is no room for a thread it is called at once.
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
                logger.error("a receiver of a signal hangs; signals are dropped until it returns, jobs go on")
            return
        self._given += 1
        self._todo.put(delivery)

    def keep_up(self) -> None:
        """Return when no more than BACKLOG_MAX deliveries wait, or at once while a receiver hangs."""
        while self.backlog > BACKLOG_MAX and not self._is_stuck():
            time.sleep(0.002)

    def end(self, most_seconds: float = math.inf) -> None:
        """Wait for what is not called yet, unless a receiver hangs."""
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
                clean_connections()
                self._since = 0.0
                self._called += 1
            if self._dropped:
                logger.warning("%d signals were dropped while a receiver hung", self._dropped)
                self._dropped = 0
