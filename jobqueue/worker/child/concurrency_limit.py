"""How many jobs a child may run at once: --concurrency while the database is healthy, fewer while it is not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from jobqueue.db.retry import retries
from jobqueue.worker.shared.scoreboard import ProcessSlot

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
