"""Slow the runs of a task that all fail for reasons outside the jobs: what they depend on is probably down."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jobqueue.failures import FailureCause, classify
from jobqueue.transitions import Lease
from jobqueue.worker.run.attempt import Ending, Outcome
from jobqueue.worker.shared.scoreboard import ProcessSlot

logger = logging.getLogger("jobqueue.worker")

RECENT, FAILED = 10, 9  # this many of so many runs
PROBE_SECONDS = 0.5
# For how long jobs are given back that are not probes: as long as it has lasted so far, within these bounds.
PARK_LOW_SECONDS, PARK_HIGH_SECONDS = 5.0, 60.0
# All else is the fault of the job or of its code: the next job fares no better or worse for waiting.
OUTSIDE = {FailureCause.DEPENDENCY, FailureCause.RESOURCE, FailureCause.TIMEOUT}
CHAIN_MAX = 20

#: queue, and name of the task; None: the handler of the queue
Kind = tuple[str, str | None]


@dataclass(slots=True)
class _Slowed:
    """Since when, when the next one may run, and until when jobs have been given back one for each probe."""

    since: float
    next_probe: float
    last_slot: float

    def is_probe(self, now: float) -> bool:
        if now < self.next_probe:
            return False
        self.next_probe = now + PROBE_SECONDS
        return True

    def park_seconds(self, now: float) -> float:
        """For how long to give back the next one: the first few come back one by one, in time for the probes."""
        slot = max(self.last_slot, now) + PROBE_SECONDS
        if slot - now > PARK_LOW_SECONDS:
            return min(PARK_HIGH_SECONDS, max(PARK_LOW_SECONDS, now - self.since))
        self.last_slot = slot
        return slot - now


class CircuitBreaker:
    """Per queue and task: free until 9 of its last 10 runs failed, then one job each half second until one succeeds.

    Only failures count whose cause, or the cause of what they were raised from, speaks for something outside of the
    jobs. With adaptive=False every task is free.
    """

    def __init__(
        self, slot: ProcessSlot, name: str, *, adaptive: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slot, self._name, self._adaptive, self._clock = slot, name, adaptive, clock
        self._recent: dict[Kind, deque[bool]] = {}
        self._slowed: dict[Kind, _Slowed] = {}
        self._parked_until = 0.0
        # The claimer asks while the settler tells.
        self._lock = threading.Lock()

    @property
    def holds(self) -> bool:
        """Whether jobs that sift() did not let run are still to come back."""
        return self._clock() < self._parked_until

    def sift(self, leases: list[Lease]) -> tuple[list[Lease], dict[float, list[Lease]]]:
        """Those that may run now, and the others by the seconds for which they are to be given back."""
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
            # They come back by the database's clock, a little later than by this one.
            self._parked_until = max(self._parked_until, now + max(parked) + PROBE_SECONDS)
        return free, parked

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Learn how runs ended."""
        last: BaseException | None = None
        for outcome in outcomes:
            # A worker without failures pays for this look and nothing else.
            if outcome.error is None:
                if not self._recent:
                    continue
            elif outcome.error is last:
                continue  # one call that raised, however many jobs were in it
            last = outcome.error
            with self._lock:
                self._note(outcome)

    def _note(self, outcome: Outcome) -> None:
        kind = outcome.lease.queue, outcome.lease.task
        if outcome.ending in (Ending.OK, Ending.FINISHED):
            self._succeeded(kind)
        elif outcome.ending is Ending.FAILED and self._adaptive and _is_outside(outcome.error):
            self._failed(kind)

    def _failed(self, kind: Kind) -> None:
        recent = self._recent.setdefault(kind, deque(maxlen=RECENT))
        recent.append(True)
        if kind not in self._slowed and sum(recent) >= FAILED:
            now = self._clock()
            self._slowed[kind] = _Slowed(since=now, next_probe=now + PROBE_SECONDS, last_slot=now)
            words = "the runs of %s in queue %s fail; one job at a time until one succeeds"
            self._tell(words, kind)

    def _succeeded(self, kind: Kind) -> None:
        recent = self._recent.get(kind)
        if recent is None:
            return
        recent.append(False)
        if self._slowed.pop(kind, None) is not None:
            self._tell("a run of %s in queue %s succeeded; full speed again", kind)
            del self._recent[kind]
        elif not any(recent):
            del self._recent[kind]

    def _tell(self, words: str, kind: Kind) -> None:
        self._slot.queues_slowed = len({queue for queue, _ in self._slowed})
        logger.info(f"%s: {words}", self._name, kind[1] or "the handler", kind[0])


def _is_outside(error: BaseException | None) -> bool:
    return any(classify(found) in OUTSIDE for found in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """`error`, and what it was raised from: libraries turn a refused connection into an exception of their own."""
    for _ in range(CHAIN_MAX):
        if error is None:
            return
        yield error
        error = error.__cause__
