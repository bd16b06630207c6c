"""What the threads of one child process share, and how each of them behaves while the database is unreachable."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager

from django.db import connections

from jobqueue.backoff import Backoff
from jobqueue.db import fault_vendor, is_lost_connection, is_refusal, one_writer
from jobqueue.db.dialect import ErrorKind
from jobqueue.db.time_limit import watched
from jobqueue.exceptions import DatabaseBusy
from jobqueue.worker.child.breakers import Breakers
from jobqueue.worker.child.concurrency_limit import ConcurrencyLimit
from jobqueue.worker.child.retry_budget import RetryBudget
from jobqueue.worker.run.pool import Pool
from jobqueue.worker.shared.scoreboard import Scoreboard
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

PAUSE = Backoff(base_seconds=0.15, cap_seconds=5.0, jitter=0.33)


class Outage:
    """How one thread behaves while the database is unreachable: it logs that once, and tries again.

    It counts failures in a row and reports them to the concurrency limit. `what` names its work in the log.
    """

    def __init__(self, name: str, what: str, using: str, concurrency: ConcurrencyLimit) -> None:
        self.what = what
        self._name, self._using, self._concurrency = name, using, concurrency
        self.failures, self.next_try = 0, 0.0
        #: whether the database did not answer at the last failure; if it refused, a new process would not help
        self.unanswered = False
        self.code = ""  # the code of the last error, as long as it means that there is no connection

    def met(self, error: BaseException | None) -> None:
        """The database did not answer, or refused; None: the error has been logged already. Closes the connection."""
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
        if self.failures:
            logger.info("%s: the database answers again", self._name)
            self._concurrency.outage_ended()
        self.failures, self.unanswered, self.code = 0, False, ""

    def _code(self, error: BaseException) -> str:
        """The database's code of an error that means that there is no connection; "" for others."""
        found = error.__cause__ if isinstance(error, DatabaseBusy) and error.__cause__ is not None else error
        return fault_vendor(self._using).error_code(found) if is_lost_connection(found, self._using) else ""


class Child:
    """One child process: its options, its slot on the scoreboard, its pool and its limits."""

    def __init__(self, options: Options, index: int, scoreboard: Scoreboard) -> None:
        self.options, self.index, self.using = options, index, options.database
        self.header, self.slot, self.wakeups = scoreboard.header, scoreboard.slots[index], scoreboard.wakeups
        self.supervisor_pid = scoreboard.supervisor_pid
        self.name = options.child_name(index, self.slot.generation)
        #: the beginning of its debug lines
        self.label = "" if options.processes == 1 else f"process {index + 1}: "
        self.stopping = False
        quota = options.quota(index)
        #: how many more jobs it may start. What earlier processes of this slot claimed counts: a job that killed its
        #: process was started.
        self.quota = None if quota is None else max(0, quota - self.slot.claimed)
        self.pool = Pool(
            scoreboard.lease_slots[index], options.concurrency, options.async_concurrency, lambda: self.stopping
        )
        self.pool.unkept = lambda: self.unrenewed_seconds > 2 * options.heartbeat_seconds
        self.concurrency = ConcurrencyLimit(options.concurrency, self.slot, self.name, adaptive=options.adaptive)
        self.budget = RetryBudget(scoreboard.retries[index], scoreboard.retries, self.name)
        #: held while writing: on a database with one writer, two connections would only wait for each other in sleeps
        self.turn = one_writer(options.database)
        self.breakers = Breakers(self.slot, self.pool, options.database, self.turn, self.watched)

    @property
    def unrenewed_seconds(self) -> float:
        """Seconds since the monitor last renewed leases; meanwhile it is unknown which leases were lost."""
        return time.monotonic() - self.header.renewed_at

    def watched(self) -> AbstractContextManager[None]:
        """A block in which a statement of this thread fails if the database does not answer it for half a lease."""
        return watched(connections[self.using])

    def use_quota(self, jobs: int) -> None:
        """Record that `jobs` were claimed; a negative number: given back."""
        if self.quota is not None:
            self.quota -= jobs
