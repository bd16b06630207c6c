"""A thread that waits for nobody, and does what must be done while others wait for a server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from jobqueue.db import cutting
from jobqueue.db.cutting import Waits

logger = logging.getLogger("jobqueue.worker")

LOOK_SECONDS = 0.1


class Lookout:
    """Cuts connections of this process on which the database has not answered for `seconds`; `duties` besides."""

    def __init__(self, name: str, seconds: float) -> None:
        waits = Waits(name, seconds)
        cutting.watch(waits)
        self.duties: list[Callable[[], None]] = [waits.cut]
        self._failing = False

    def start(self) -> None:
        """Raises RuntimeError where there is no room for a thread."""
        threading.Thread(target=self._work, name="lookout", daemon=True).start()

    def _work(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                for duty in self.duties:
                    duty()
                self._failing = False
            except Exception:
                self._complain()

    def _complain(self) -> None:
        # A handler of the project's may raise too, and nobody else looks.
        with suppress(Exception):
            if not self._failing:
                logger.exception("a look at what this process waits for failed; it is tried again")
        self._failing = True
