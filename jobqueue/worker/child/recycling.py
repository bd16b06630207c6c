"""When a child has done enough and is replaced by a fresh process: by memory, jobs, time, or threads that hang."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from jobqueue.worker.shared.scoreboard import Exit
from jobqueue.worker.shared.worker_options import Options

JITTER = 0.2


class Recycling:
    """How worn one child is. It only tells: the loop drains, the supervisor starts the next one."""

    def __init__(self, options: Options, slot: Any) -> None:
        self._rss_bytes_max, self._jobs_max = options.max_rss_bytes, options.recycle_jobs
        # The scoreboard counts on from one incarnation of a child to the next.
        self._slot, self._ended_before = slot, slot.finished
        # Up to a fifth sooner, drawn per child: started together, they must not all leave together.
        life = options.recycle_seconds
        self._until = None if life is None else time.monotonic() + life * random.uniform(1 - JITTER, 1.0)

        self._hung = False

    def note_hung_threads(self) -> None:
        """Threads of this process hang for ever. Safe in any thread."""
        self._hung = True

    def over(self) -> Exit | None:
        """Why the child is to be replaced now, None while it may go on."""
        if self._jobs_max is not None and self._slot.finished - self._ended_before >= self._jobs_max:
            return Exit.RECYCLE_JOBS
        if self._until is not None and time.monotonic() >= self._until:
            return Exit.RECYCLE_TIME
        # One that is too large from the start does some work all the same, or its like would be started for ever.
        worked = self._slot.finished > self._ended_before
        if self._rss_bytes_max is not None and worked and rss_bytes() > self._rss_bytes_max:
            return Exit.RECYCLE
        return Exit.RECYCLE_RELAY if self._hung else None


def rss_bytes() -> int:
    """Resident memory of this process, 0 where /proc does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
