"""A thread without a connection, for duties that must not wait for a database."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from jobqueue.db.time_limit import StuckStatements, watch_with

logger = logging.getLogger("jobqueue.worker")

LOOK_SECONDS = 0.1


class Watchdog:
    """Cuts connections of this process on which the database has not answered for `seconds`, and runs `duties`."""

    def __init__(self, name: str, seconds: float) -> None:
        stuck = StuckStatements(name, seconds)
        watch_with(stuck)
        self.duties: list[Callable[[], None]] = [stuck.cut]
        self._failing = False

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system has no room for it."""
        threading.Thread(target=self._work, name="watchdog", daemon=True).start()

    def _work(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                for duty in self.duties:
                    duty()
                self._failing = False
            except Exception:
                # The log handlers of a project may raise, too, and no other thread does these duties.
                with suppress(Exception):
                    if not self._failing:
                        logger.exception("the watchdog of this process raised an unexpected error; it continues")
                self._failing = True
