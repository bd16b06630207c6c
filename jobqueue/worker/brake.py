"""Slow the claims of a queue whose runs all fail for reasons outside the jobs: what they depend on is probably down."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from jobqueue.failures import FailureCause, classify
from jobqueue.worker.perform import Ending, Outcome

logger = logging.getLogger("jobqueue.worker")

RECENT, FAILED = 10, 9  # this many of so many runs
PROBE_SECONDS = 0.5
# A malformed payload or an impossible order fails by itself; the next job may well succeed.
OWN_FAULT = {FailureCause.FORMAT, FailureCause.DATA}


class Brake:
    """Per queue: free until 9 of its last 10 runs failed, then one job each half second until one succeeds.

    Failures of cause `format` and `data` do not count. With adaptive=False every queue is free.
    """

    def __init__(self, region: Any, name: str, *, adaptive: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._region, self._name, self._adaptive, self._clock = region, name, adaptive, clock
        self._recent: dict[str, deque[bool]] = {}
        self._next_probe: dict[str, float] = {}
        # The claimer asks while the settler tells.
        self._lock = threading.Lock()

    def room(self, queue: str, room: int) -> int:
        """How many jobs of `queue` may be claimed now, where there is room for `room`."""
        if queue not in self._next_probe:
            return room
        with self._lock:
            due_at = self._next_probe.get(queue)
            if due_at is None:
                return room
            if self._clock() < due_at:
                return 0
            self._next_probe[queue] = self._clock() + PROBE_SECONDS
            return 1

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
        queue = outcome.lease.queue
        if outcome.ending in (Ending.OK, Ending.FINISHED):
            self._succeeded(queue)
        elif outcome.ending is Ending.FAILED and self._adaptive and classify(outcome.error or "") not in OWN_FAULT:
            self._failed(queue)

    def _failed(self, queue: str) -> None:
        recent = self._recent.setdefault(queue, deque(maxlen=RECENT))
        recent.append(True)
        if queue not in self._next_probe and sum(recent) >= FAILED:
            self._next_probe[queue] = self._clock() + PROBE_SECONDS
            self._region.queues_slowed = len(self._next_probe)
            logger.info("%s: the runs of queue %s fail; one job at a time until one succeeds", self._name, queue)

    def _succeeded(self, queue: str) -> None:
        recent = self._recent.get(queue)
        if recent is None:
            return
        recent.append(False)
        if self._next_probe.pop(queue, None) is not None:
            self._region.queues_slowed = len(self._next_probe)
            logger.info("%s: a run of queue %s succeeded; full speed again", self._name, queue)
            del self._recent[queue]
        elif not any(recent):
            del self._recent[queue]
