"""Carries recorded redrives of dead letters out."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter

from jobqueue.conf import Settings
from jobqueue.dead_letters.stepping import BATCH, Step, step
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Redrive

logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

#: for how long after a step a worker looks for the next one more often than once a second
ACTIVE_SECONDS = 2.0


class Redriver:
    """Takes one step per call. Any number of processes may: one of them gets each step."""

    def __init__(self, batch: int = BATCH) -> None:
        self._batch = min(batch, BATCH)
        self._active_until = -math.inf
        self._waiting: set[int] = set()  # those that met a lock in their last step
        self.more = False  # whether the next step is due at once

    @property
    def active(self) -> bool:
        """Whether a redrive is under way, whose next step is due in a moment."""
        return time.monotonic() < self._active_until

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Take the next step that is due: one index seek if there is none."""
        done = step(using=using, batch=self._batch)
        # Another redrive may be due, if this one cannot go on.
        self.more = done is not None and (done.more or done.error is not None)
        if done is None:
            return Counter()
        if done.state in (Redrive.State.CANARY, Redrive.State.RUNNING):
            self._active_until = time.monotonic() + ACTIVE_SECONDS
        self._report(done)
        return Counter(jobs_redriven=done.redriven, jobs_skipped=done.skipped)

    def _report(self, done: Step) -> None:
        """Each state once at INFO, each step at DEBUG."""
        name = f"redrive {done.redrive_id} of dead letters"
        counts = f"{done.redriven_in_all} redriven, {done.skipped_in_all} skipped"
        if isinstance(done.error, DatabaseBusy):
            if done.redrive_id not in self._waiting:
                logger.info("%s waits, and is tried again each second: %s", name, done.reason)
            self._waiting = {*self._waiting, done.redrive_id}
            return
        self._waiting -= {done.redrive_id}
        if done.state == Redrive.State.STOPPED:
            logger.warning("%s was stopped: %s (%s)", name, done.reason, counts, exc_info=done.error)
        elif done.state and done.state != done.before:
            logger.info("%s: %s: %s", name, done.state, counts)
        else:
            detail.debug("%s: %d redriven, %d skipped in this step", name, done.redriven, done.skipped)
