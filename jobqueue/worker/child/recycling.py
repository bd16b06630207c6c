"""When a child is replaced by a new process: memory, jobs, time, hanging threads, and in development changed code."""

from __future__ import annotations

import os
import random
import time

from django.apps import apps
from django.utils.autoreload import StatReloader

from jobqueue.tasks import registry
from jobqueue.worker.shared.processes import rss_bytes
from jobqueue.worker.shared.scoreboard import Exit, ProcessSlot
from jobqueue.worker.shared.worker_options import Options

JITTER = 0.2
LOOK_SECONDS = 1.0  # between two looks at the files of the code


class Recycling:
    """Knows whether one child is to be replaced. The loop then drains, and the supervisor starts the next process."""

    def __init__(self, options: Options, slot: ProcessSlot) -> None:
        self._rss_bytes_max, self._jobs_max = options.max_rss_bytes, options.recycle_jobs
        # The slot continues the counts of earlier processes.
        self._slot, self._ended_before = slot, slot.finished
        # Up to a fifth sooner, drawn per child: children that started together must not end together.
        life = options.recycle_seconds
        self._until = None if life is None else time.monotonic() + life * random.uniform(1 - JITTER, 1.0)
        self._hung = False
        self._code = ChangedCode() if options.reload else None

    def note_hung_threads(self) -> None:
        """Record that threads of this process hang for ever. Safe in any thread."""
        self._hung = True

    def due(self) -> Exit | None:
        """Why the child must be replaced now; None while it may continue."""
        ended = self._slot.finished - self._ended_before
        if self._jobs_max is not None and ended >= self._jobs_max:
            return Exit.RECYCLE_JOBS
        if self._until is not None and time.monotonic() >= self._until:
            return Exit.RECYCLE_TIME
        # A child that is too large from the start runs a job first, or its successors would do no work at all.
        if self._rss_bytes_max is not None and ended and rss_bytes(os.getpid()) > self._rss_bytes_max:
            return Exit.RECYCLE
        if self._hung:
            return Exit.RECYCLE_RELAY
        return Exit.RELOAD if self._code is not None and self._code.found() else None


class ChangedCode:
    """Notices changes of files: of the modules that were loaded when it was made, of those whose import failed, and of
    each <app>/tasks.py, also one that is not there yet."""

    def __init__(self) -> None:
        self._reloader = StatReloader()
        self._not_loaded = {os.path.join(config.path, "tasks.py") for config in apps.get_app_configs()}
        self._not_loaded |= registry.failed_files()
        self._known = self._times()
        self._next = 0.0

    def found(self) -> bool:
        """Whether such a file has changed since; reads the files at most once a second."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOOK_SECONDS
        found = self._times()
        return any(found.get(path) != mtime for path, mtime in self._known.items())

    def _times(self) -> dict[str, float | None]:
        times: dict[str, float | None] = {path: _mtime(path) for path in self._not_loaded}
        return times | {str(path): mtime for path, mtime in self._reloader.snapshot_files()}


def _mtime(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
