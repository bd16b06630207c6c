"""Deletes ended jobs as the setting RETENTION says, in small steps, so that producers and workers do not notice."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.locks.lease import Turn
from jobqueue.log_format import count_of
from jobqueue.retention.deletion import Chosen, Deletions, delete_attempts_without_job
from jobqueue.retention.history import keep_by
from jobqueue.retention.windows import Group, Place, Walk, results_past_ttl

logger = logging.getLogger("jobqueue.worker")

#: jobs of one transaction
BATCH = 1000
#: between two walks through all queues, and between two looks for results that are past their TTL
INTERVAL_SECONDS, RESULTS_SECONDS = 60.0, 30.0
#: one step reads for this long at most, if it finds nothing to delete
STEP_SECONDS = 0.05
#: a step is followed by a pause so many times as long as it took, so that a fifth of one connection's time is used
REST, REST_SECONDS_MIN = 4.0, 0.02
#: the same where all writers wait for each other: then a wait is longer than what one waits for
SINGLE_WRITER_REST, SINGLE_WRITER_REST_SECONDS_MIN = 6.0, 0.05
#: the worker that holds this lease lock prunes for all workers of the database
LOCK_NAME = "jobqueue: pruner"
# When the process of that worker dies, another one prunes after this time.
LOCK_SECONDS = 100.0
#: groups of jobs in which a place is remembered
_PLACES_MAX = 10_000


class Pruner:
    """Takes one step per call. One worker prunes; the lock only saves work: two pruners do no harm.

    `turn` is held for each step that writes. With `once` there is no lock, and no place is remembered.
    """

    def __init__(
        self, batch: int = BATCH, turn: AbstractContextManager[object] | None = None, *, once: bool = False
    ) -> None:
        self._turn, self._once = turn or nullcontext(), once
        self._deletions = Deletions(batch)
        self._walk: Iterator[Chosen | None] | None = None
        self._results: Iterator[Chosen | None] | None = None
        self._results_at = 0.0
        self._places: dict[Group, Place] = {}
        self._after_attempt = self._deleted = 0
        self._lock, self._renew_at = Turn(LOCK_NAME, LOCK_SECONDS), 0.0
        self.more = False  # whether the walk goes on with the next call
        self.pause_seconds = INTERVAL_SECONDS  # how long to wait before the next call

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Take the next step: delete up to `batch` jobs in one transaction. If another worker prunes, nothing.

        Counts `jobs_deleted`, and as `attempts_deleted` those whose job had been deleted before.
        """
        begun = time.monotonic()
        self.more, self.pause_seconds = False, INTERVAL_SECONDS
        try:
            if not self._once and not self._is_ours(using):
                self._walk = self._results = None
                return Counter()
            done = self._step(settings, using, begun)
        except BaseException:
            self._walk = self._results = None
            raise
        if self.more:
            self.pause_seconds = _rest(time.monotonic() - begun, using)
        return done

    def _step(self, settings: Settings, using: str, begun: float) -> Counter[str]:
        if self._walk is None:
            self._begin(settings, using)
        while not self._deletions and time.monotonic() - begun < STEP_SECONDS:
            if not self._look(settings, using):
                return self._end(using)
        self.more = True
        if not self._deletions:
            return Counter()
        with self._turn:
            _, gone = self._deletions.next(keep_by(settings), using)
        self._deleted += len(gone)
        return Counter(jobs_deleted=len(gone))

    def _begin(self, settings: Settings, using: str) -> None:
        if len(self._places) > _PLACES_MAX:
            self._places.clear()
        self._walk = Walk.of(settings).chosen(using, None if self._once else self._places)
        self._results_at = 0.0

    def _look(self, settings: Settings, using: str) -> bool:
        """Read on in the walk, and all the time too among results that are past their TTL; False at the end of both."""
        if self._results is None and time.monotonic() >= self._results_at:
            self._results = results_past_ttl(settings.dedupe_seconds, using=using, writes=True)
            self._results_at = time.monotonic() + RESULTS_SECONDS
        ended = True
        for source in (self._results, self._walk):
            for found in source or ():
                ended = False
                if found is not None:
                    self._deletions.add(found)
                break
            else:
                if source is self._results:
                    self._results = None
        return not ended

    def _end(self, using: str) -> Counter[str]:
        """The walk has come to its end."""
        if self._deleted:
            logger.info("pruner: deleted %s", count_of(self._deleted, "ended job"))
        self._walk, self._deleted = None, 0
        deleted, self._after_attempt = delete_attempts_without_job(self._after_attempt, using=using)
        return Counter(attempts_deleted=deleted)

    def _is_ours(self, using: str) -> bool:
        now = time.monotonic()
        if now < self._renew_at:
            return True
        with self._turn:
            ours = self._lock.hold(using)
        self._renew_at = now + LOCK_SECONDS / 3 if ours else 0.0
        return ours


def _rest(took: float, using: str) -> float:
    """The pause in seconds after a step that took so long."""
    if vendor(using).single_writer:
        return max(SINGLE_WRITER_REST_SECONDS_MIN, SINGLE_WRITER_REST * took)
    return max(REST_SECONDS_MIN, REST * took)
