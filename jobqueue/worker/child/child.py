"""What the threads of one child process share, and how many jobs it may run at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from django.db import connections

from jobqueue.db import one_writer
from jobqueue.db.outage import Outage
from jobqueue.db.retry import retries
from jobqueue.db.time_limit import watched
from jobqueue.worker.child.retry_budget import RetryBudget
from jobqueue.worker.child.sifting import Breakers
from jobqueue.worker.run.pool import Pool
from jobqueue.worker.shared.scoreboard import ProcessSlot, Scoreboard
from jobqueue.worker.shared.worker_options import Options

logger = logging.getLogger("jobqueue.worker")

STEP_SECONDS = 0.5  # between two changes in one direction
STEPS = 8  # from zero to full concurrency
# A transaction that is redone is normal; this many within this time are not.
FAULTS, FAULTS_SECONDS = 3, 1.0
# A claim is slow if it takes this many times the usual time and at least SLOW_SECONDS; one alone may be chance.
SLOW_FACTOR, SLOW_SECONDS, SLOW_CLAIMS = 8.0, 0.25, 3


class ConcurrencyLimit:
    """Starts at full concurrency, halves on trouble, and rises by eighths while work waits and claims succeed.

    Never below 1, never above `most`. With adaptive=False the level stays at `most`.
    """

    def __init__(
        self, most: int, slot: ProcessSlot, name: str, *, adaptive: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most, self.level = most, most
        self._slot, self._name, self._clock = slot, name, clock
        self._adaptive = adaptive
        self._outage, self._filled = False, True
        self._next_fall = self._next_rise = 0.0
        self._faults, self._window_faults, self._window_until = sum(retries.values()), 0, 0.0
        self._slow = 0
        self._usual_seconds: float | None = None
        self._began = self._cpu_began = 0.0
        slot.level = most

    def limit(self, in_hand: int) -> int:
        """Return the level, after raising it by a step if `in_hand` jobs use it up and the database is healthy."""
        if self.level < self.most and not self._outage and (self._filled or in_hand >= self.level):
            now = self._clock()
            if now >= self._next_rise:
                self._next_rise = now + STEP_SECONDS
                self._change(min(self.most, self.level + -(-self.most // STEPS)), "the database is healthy")
        return self.level

    def begin(self) -> None:
        """Record that a round of claims begins."""
        self._began, self._cpu_began = self._clock(), time.process_time()

    def claimed(self, count: int, room: int) -> None:
        """Record that the round succeeded, with `count` jobs where there was room for `room`."""
        self._filled = count >= room
        slow = count > 0 and self._is_slow(self._clock() - self._began, time.process_time() - self._cpu_began)
        self._slow = self._slow + 1 if slow else 0
        if self._slow >= SLOW_CLAIMS:
            self._fall("claims take many times longer than usual")
        elif slow:
            self._next_rise = self._clock() + STEP_SECONDS
        self._count_faults()

    def outage_began(self) -> None:
        """Halve the level, at most twice a second: the database does not answer."""
        self._outage = True
        self._fall("the database is unreachable")

    def outage_ended(self) -> None:
        """Let the level rise again: the database answers."""
        self._outage = False
        self._next_rise = self._clock() + STEP_SECONDS

    def _fall(self, why: str) -> None:
        now = self._clock()
        self._next_rise = now + STEP_SECONDS
        if self._adaptive and self.level > 1 and now >= self._next_fall:
            self._next_fall = now + STEP_SECONDS
            self._change(self.level // 2, why)

    def _count_faults(self) -> None:
        found = sum(retries.values())
        if found == self._faults:
            return
        now = self._clock()
        if now >= self._window_until:
            self._window_faults, self._window_until = 0, now + FAULTS_SECONDS
        self._window_faults += found - self._faults
        self._faults = found
        if self._window_faults >= FAULTS:
            self._window_faults = 0
            self._fall("transactions are refused and redone")

    def _is_slow(self, seconds: float, cpu_seconds: float) -> bool:
        usual = self._usual_seconds
        if usual is None:
            self._usual_seconds = seconds
            return False
        # The average falls fast and rises slowly: a bad minute must not become usual, but a slower server finally must.
        weight = 0.1 if seconds < usual else 0.01
        self._usual_seconds = usual + weight * (min(seconds, 2 * usual) - usual)
        # If this process used the processor meanwhile, the claim waited for the interpreter and not for the database.
        return seconds > max(SLOW_SECONDS, SLOW_FACTOR * usual) and cpu_seconds < seconds / 2

    def _change(self, level: int, why: str) -> None:
        self.level = self._slot.level = level
        logger.info("%s: %d of %d jobs at once: %s", self._name, level, self.most, why)


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
