"""Decides which process looks. A thread looks and tells, so that the other work of the process does not wait."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

from django.db import Error, connections

from jobqueue import signals
from jobqueue.alarms.delivery import is_anything_due, tell_due
from jobqueue.alarms.looking import UNWATCHED_SECONDS, end_unwatched, look
from jobqueue.conf import Settings
from jobqueue.db.time_limit import lock_limit
from jobqueue.exceptions import DatabaseBusy, LockNotAcquired, StatementTimeout
from jobqueue.locks.lease import uncounted_lock
from jobqueue.signals import Dispatch

logger = logging.getLogger("jobqueue.alarms")

#: between two looks of all processes together, nearly
INTERVAL_SECONDS = 15.0
TURN = "jobqueue: alarms"


class AlarmWatch:
    """One process's part. Any number of processes may call run_once() every INTERVAL_SECONDS: one of them looks."""

    def __init__(self, dispatch: Dispatch | None = None) -> None:
        self._dispatch = dispatch
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        # Soon after a change of the settings, the workers that know the old ones may still be there.
        self._unwatched_at = time.monotonic() + UNWATCHED_SECONDS

    def run_once(self, settings: Settings, *, using: str) -> Counter[str]:
        """Start a thread that looks, if it is this process's turn, and tells what is due; two or three statements."""
        if self._ending.is_set() or (self._thread is not None and self._thread.is_alive()):
            return Counter()
        if not settings.alarms.watches:
            self._end_unwatched(settings, using)
            return Counter()
        looks = _my_turn(using)
        if not looks and not is_anything_due(using=using):
            return Counter()
        self._thread = threading.Thread(target=self._work, args=(settings, using, looks), name="alarms", daemon=True)
        self._thread.start()
        return Counter(looks=int(looks), tells=1)

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for the end of what run_once() began."""
        if self._thread is not None:
            self._thread.join(seconds)

    def end(self, seconds: float) -> None:
        """Begin nothing any more, and wait up to `seconds` for the recipient that is being told."""
        self._ending.set()
        self.wait(seconds)

    def _end_unwatched(self, settings: Settings, using: str) -> None:
        if time.monotonic() >= self._unwatched_at:
            self._unwatched_at = time.monotonic() + UNWATCHED_SECONDS
            end_unwatched(settings, using=using)

    def _work(self, settings: Settings, using: str, looks: bool) -> None:
        signals.dispatch_via(self._dispatch)
        try:
            with lock_limit(using=using):
                if looks:
                    look(settings, using=using)
                tell_due(settings, using=using, ending=self._ending.is_set)
        except (Error, DatabaseBusy, StatementTimeout) as error:
            logger.warning("alarms were not looked at: %s; the next look is in %g s", error, INTERVAL_SECONDS)
        except Exception:
            logger.exception("an unexpected error; the next look for alarms is in %g s", INTERVAL_SECONDS)
        finally:
            connections[using].close()


def _my_turn(using: str) -> bool:
    try:
        # The lock is left to expire, so that it is held until the next look is due.
        uncounted_lock(TURN, INTERVAL_SECONDS * 0.75, using).acquire()
    except LockNotAcquired:
        return False
    return True
