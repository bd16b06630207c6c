"""Carries recorded runs out: redrives of dead letters, and bulk verbs."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter

from jobqueue.conf import Settings
from jobqueue.exceptions import DatabaseBusy
from jobqueue.runs.stepping import Kind, Step, next_step

logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

#: for how long after a step a worker looks for the next one more often than once a second
ACTIVE_SECONDS = 2.0


class Runner:
    """Takes one step of the runs of one kind per call. Any number of processes may: one of them gets each step."""

    def __init__(self, kind: Kind, most: int | None = None) -> None:
        self._kind, self._most = kind, min(most or kind.most, kind.most)
        self._active_until = -math.inf
        self._waiting: set[int] = set()  # those that met a lock in their last step
        self.more = False  # whether the next step is due at once

    @property
    def active(self) -> bool:
        """True if a run is under way, whose next step is due in a moment."""
        return time.monotonic() < self._active_until

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Take the next step that is due: one index seek if there is none."""
        done = next_step(self._kind, most=self._most, using=using)
        # Another run may be due, if this one cannot go on.
        self.more = done is not None and (done.more or done.error is not None)
        if done is None:
            return Counter()
        if done.phase in ("canary", "running"):
            self._active_until = time.monotonic() + ACTIVE_SECONDS
        self._report(done)
        changed, refused = self._kind.counts
        return Counter({changed: done.changed, refused: done.refused})

    def _report(self, done: Step) -> None:
        """Each state once at INFO, each step at DEBUG."""
        changed, refused = self._kind.words
        name = self._kind.name.format(id=done.run_id, verb=done.verb)
        counts = f"{done.changed_in_all} {changed}, {done.refused_in_all} {refused}"
        if isinstance(done.error, DatabaseBusy):
            if done.run_id not in self._waiting:
                logger.info("%s is waiting, retrying every second: %s", name, done.problem)
            self._waiting.add(done.run_id)
            return
        self._waiting.discard(done.run_id)
        if done.phase == "failed":
            logger.warning("%s failed: %s", name, done.problem, exc_info=done.error)
        elif done.phase == "stopped":
            logger.warning("%s was stopped: %s (%s)", name, done.problem, counts, exc_info=done.error)
        elif done.phase and done.phase != done.before:
            logger.info("%s: %s: %s", name, done.phase, counts)
        else:
            detail.debug("%s: %d %s, %d %s in this step", name, done.changed, changed, done.refused, refused)
