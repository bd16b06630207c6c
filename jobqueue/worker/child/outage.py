"""How one thread of a worker behaves while the database is away: it says so once, waits longer each time, goes on."""

from __future__ import annotations

import logging
import random
import time

from django.db import Error, connections

from jobqueue.db import fault_vendor
from jobqueue.worker.child.concurrency_limit import ConcurrencyLimit

logger = logging.getLogger("jobqueue.worker")

PAUSE_SECONDS = 5.0  # no wait is longer


class Outage:
    """Counts failures in a row and tells the concurrency limit. `what` is what the thread does, for the log."""

    def __init__(self, name: str, what: str, using: str, concurrency: ConcurrencyLimit) -> None:
        self._name, self._what, self._using, self._concurrency = name, what, using, concurrency
        self.failures, self.next_try = 0, 0.0

    def met(self, error: BaseException | None) -> None:
        """The database did not answer, or refused; None: said elsewhere. The thread's connection is closed."""
        self.failures += 1
        pause = min(PAUSE_SECONDS, 0.1 * 2 ** min(self.failures, 6)) * random.uniform(0.5, 1.0)
        self.next_try = time.monotonic() + pause
        self._concurrency.away()
        if isinstance(error, Error) and fault_vendor(self._using).fault(error) is None:
            logger.error("%s: the database refused a %s: %s", self._name, self._what, error)
        elif self.failures == 1:
            logger.warning("%s: the database is away (%s); trying again until it answers", self._name, error)
        connections[self._using].close()

    def over(self) -> None:
        """It answered."""
        if self.failures:
            logger.info("%s: the database answers again", self._name)
            self._concurrency.back()
        self.failures = 0
