"""Carries recorded bulk verbs out."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter

from jobqueue.bulk_verbs.carrying_out import CHUNK, Step, step
from jobqueue.conf import Settings
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import AuditEvent

logger = logging.getLogger("jobqueue.worker")
detail = logging.getLogger("jobqueue.detail")

#: for how long after a chunk a worker looks for the next one more often than once a second
ACTIVE_SECONDS = 2.0


class BulkRunner:
    """Does one chunk per call. Any number of processes may: one of them gets each chunk."""

    def __init__(self, batch: int = CHUNK) -> None:
        self._chunk = min(batch, CHUNK)
        self._active_until = -math.inf
        self._waiting: set[int] = set()  # those that met a lock in their last chunk
        self.more = False  # whether the next chunk is due at once

    @property
    def active(self) -> bool:
        """Whether a bulk verb is under way, whose next chunk is due in a moment."""
        return time.monotonic() < self._active_until

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Do the next chunk that is due: one index seek if there is none."""
        done = step(using=using, chunk=self._chunk)
        # Another one may be due, if this one has ended or cannot go on.
        self.more = done is not None
        if done is None:
            return Counter()
        self._active_until = time.monotonic() + ACTIVE_SECONDS
        self._report(done)
        return Counter(bulk_jobs_changed=done.changed, bulk_jobs_refused=done.refused)

    def _report(self, done: Step) -> None:
        """Its beginning and its end at INFO, each chunk at DEBUG."""
        name = f"bulk action {done.event_id} ({done.verb})"
        if isinstance(done.error, DatabaseBusy):
            if done.event_id not in self._waiting:
                logger.info("%s waits, and is tried again each second: %s", name, done.error)
            self._waiting.add(done.event_id)
            return
        self._waiting.discard(done.event_id)
        if done.phase == AuditEvent.State.FAILED:
            logger.warning("%s failed: %s", name, done.error, exc_info=done.error)
        elif done.first or done.phase == AuditEvent.State.DONE:
            logger.info("%s: %s", name, done.phase)
        detail.debug("%s: %d changed, %d not changed in this chunk", name, done.changed, done.refused)
