"""Slow the runs of a task whose jobs all fail because something that they depend on is probably down."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jobqueue.failures import FailureCause
from jobqueue.transitions import Lease
from jobqueue.transitions.causes import cause_of
from jobqueue.worker.run.attempt import Ending, Outcome
from jobqueue.worker.shared.scoreboard import ProcessSlot

logger = logging.getLogger("jobqueue.worker")

RECENT, FAILED = 10, 9  # the breaker opens when 9 of the last 10 runs have failed
PROBE_SECONDS = 0.5
# Jobs that are not probes are given back for as long as the breaker has been open, within these bounds.
PARK_LOW_SECONDS, PARK_HIGH_SECONDS = 5.0, 60.0
# Other causes are in the job or its code: the next job would not gain from waiting.
OUTSIDE = {FailureCause.DEPENDENCY, FailureCause.RESOURCE, FailureCause.TIMEOUT}

#: a queue and the name of a task; None: the handler of the queue
Kind = tuple[str, str | None]


@dataclass(slots=True)
class _Slowed:
    """An open breaker: since when, when the next probe may run, and for which probe a job was last given back."""

    since: float
    next_probe: float
    last_slot: float

    def is_probe(self, now: float) -> bool:
        if now < self.next_probe:
            return False
        self.next_probe = now + PROBE_SECONDS
        return True

    def park_seconds(self, now: float) -> float:
        """For how long to give back the next job: the first few return one by one, in time for the probes."""
        slot = max(self.last_slot, now) + PROBE_SECONDS
        if slot - now > PARK_LOW_SECONDS:
            return min(PARK_HIGH_SECONDS, max(PARK_LOW_SECONDS, now - self.since))
        self.last_slot = slot
        return slot - now


class CircuitBreaker:
    """Opens for a queue and task when 9 of the last 10 runs failed; then one job runs each 0.5 s until one succeeds.

    A failure counts only if its cause is outside the jobs. With adaptive=False the breaker never opens.
    """

    def __init__(
        self, slot: ProcessSlot, name: str, *, adaptive: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slot, self._name, self._adaptive, self._clock = slot, name, adaptive, clock
        self._recent: dict[Kind, deque[bool]] = {}
        self._slowed: dict[Kind, _Slowed] = {}
        self._parked_until = 0.0
        # The claimer reads while the settler writes.
        self._lock = threading.Lock()

    @property
    def holds(self) -> bool:
        """Whether jobs that sift() held back have yet to return to their queue."""
        return self._clock() < self._parked_until

    def sift(self, leases: list[Lease]) -> tuple[list[Lease], dict[float, list[Lease]]]:
        """Return the leases that may run now, and the others by the seconds for which to give them back."""
        if not self._slowed:
            return leases, {}
        free: list[Lease] = []
        parked: dict[float, list[Lease]] = defaultdict(list)
        with self._lock:
            now = self._clock()
            for lease in leases:
                slowed = self._slowed.get((lease.queue, lease.task))
                if slowed is None or slowed.is_probe(now):
                    free.append(lease)
                else:
                    parked[slowed.park_seconds(now)].append(lease)
        if parked:
            # They become due by the database's clock, which may be a little later than by this one.
            self._parked_until = max(self._parked_until, now + max(parked) + PROBE_SECONDS)
        return free, parked

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Record how runs ended."""
        last: BaseException | None = None
        for outcome in outcomes:
            # The fast path: without failures, nothing else is done for an outcome.
            if outcome.error is None:
                if not self._recent:
                    continue
            elif outcome.error is last:
                continue  # one call that raised counts once, however many jobs were in it
            last = outcome.error
            with self._lock:
                self._note(outcome)

    def _note(self, outcome: Outcome) -> None:
        kind = outcome.lease.queue, outcome.lease.task
        if outcome.succeeded:
            self._succeeded(kind)
        elif outcome.ending is Ending.FAILED and self._adaptive and _is_outside(outcome):
            self._failed(kind)

    def _failed(self, kind: Kind) -> None:
        recent = self._recent.setdefault(kind, deque(maxlen=RECENT))
        recent.append(True)
        if kind not in self._slowed and sum(recent) >= FAILED:
            now = self._clock()
            self._slowed[kind] = _Slowed(since=now, next_probe=now + PROBE_SECONDS, last_slot=now)
            self._log("the runs of %s in queue %s fail; one job at a time until one succeeds", kind)

    def _succeeded(self, kind: Kind) -> None:
        recent = self._recent.get(kind)
        if recent is None:
            return
        recent.append(False)
        if self._slowed.pop(kind, None) is not None:
            self._log("a run of %s in queue %s succeeded; full speed again", kind)
            del self._recent[kind]
        elif not any(recent):
            del self._recent[kind]

    def _log(self, words: str, kind: Kind) -> None:
        self._slot.queues_slowed = len({queue for queue, _ in self._slowed})
        logger.info(f"%s: {words}", self._name, kind[1] or "the handler", kind[0])


def _is_outside(outcome: Outcome) -> bool:
    return outcome.error is not None and cause_of(outcome.error, outcome.lease.task) in OUTSIDE
