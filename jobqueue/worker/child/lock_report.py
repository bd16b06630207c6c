"""What the locks of a child's jobs did, told to the monitor by the scoreboard."""

from __future__ import annotations

from typing import Any

from jobqueue.lockstats.counters import Counters

_FIGURES = {
    "locks_acquired": "acquired",
    "locks_failed": "failed",
    "locks_contended": "contended",
    "locks_reentered": "reentries",
    "locks_wait_us": "wait_us",
}


class LockReport:
    """Adds the sums of one process to those of the processes that had its place on the scoreboard before."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot
        self._before = {name: getattr(slot, name) for name in _FIGURES}

    def __call__(self, total: Counters) -> None:
        """Every few seconds, in the thread that writes lock statistics."""
        for name, figure in _FIGURES.items():
            setattr(self._slot, name, self._before[name] + getattr(total, figure))
