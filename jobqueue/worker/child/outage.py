"""How one thread of a child behaves while the database is unreachable: it logs that once, and tries again."""

from __future__ import annotations

import logging
import time

from django.db import connections

from jobqueue.backoff import Backoff
from jobqueue.db import fault_vendor, is_lost_connection, is_refusal
from jobqueue.db.dialect import ErrorKind
from jobqueue.exceptions import DatabaseBusy
from jobqueue.worker.child.concurrency_limit import ConcurrencyLimit

logger = logging.getLogger("jobqueue.worker")

PAUSE = Backoff(base_seconds=0.15, cap_seconds=5.0, jitter=0.33)


class Outage:
    """Counts failures in a row and reports them to the concurrency limit. `what` names the thread's work in the log."""

    def __init__(self, name: str, what: str, using: str, concurrency: ConcurrencyLimit) -> None:
        self.what = what
        self._name, self._using, self._concurrency = name, using, concurrency
        self.failures, self.next_try = 0, 0.0
        #: whether the database did not answer at the last failure; if it refused, a new process would not help
        self.unanswered = False
        self.code = ""  # the code of the last error, as long as it means that there is no connection

    def met(self, error: BaseException | None) -> None:
        """The database did not answer, or refused; None: the error was logged elsewhere. Closes the connection."""
        self.failures += 1
        if error is not None:
            self.code = self._code(error)
        self.next_try = time.monotonic() + PAUSE.delay_seconds(self.failures)
        self._concurrency.outage_began()
        kind = None if error is None else fault_vendor(self._using).error_kind(error)
        self.unanswered = kind is ErrorKind.LOST_CONNECTION
        if is_refusal(error, self._using):
            logger.error("%s: the database refused a %s: %s", self._name, self.what, error)
        elif self.failures == 1:
            logger.warning("%s: the database is unreachable (%s); trying again until it answers", self._name, error)
        connections[self._using].close()

    def over(self) -> None:
        """Note that the database answers again."""
        if self.failures:
            logger.info("%s: the database answers again", self._name)
            self._concurrency.outage_ended()
        self.failures, self.unanswered, self.code = 0, False, ""

    def _code(self, error: BaseException) -> str:
        """The database's code of an error that means that there is no connection; "" for others."""
        found = error.__cause__ if isinstance(error, DatabaseBusy) and error.__cause__ is not None else error
        return fault_vendor(self._using).error_code(found) if is_lost_connection(found, self._using) else ""
