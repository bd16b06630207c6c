"""What the threads of one child process share."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from django.db import connections

from jobqueue.db import one_writer
from jobqueue.db.outage import Outage
from jobqueue.db.stuck_statements import watched
from jobqueue.worker.child.breakers import Breakers
from jobqueue.worker.child.concurrency_limit import ConcurrencyLimit
from jobqueue.worker.child.retry_budget import RetryBudget
from jobqueue.worker.run.pool import Pool
from jobqueue.worker.shared.scoreboard import Scoreboard
from jobqueue.worker.shared.worker_options import Options


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

    def outage(self, work: str) -> Outage:
        """The outages of one thread's work, which lower the concurrency limit."""
        limit = self.concurrency
        return Outage(self.name, work, self.using, on_failure=limit.outage_began, on_end=limit.outage_ended)

    def use_quota(self, jobs: int) -> None:
        """Record that `jobs` were claimed; a negative number: given back."""
        if self.quota is not None:
            self.quota -= jobs
