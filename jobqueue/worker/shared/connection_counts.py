"""How often the threads of a child opened connections and were refused one, and how long they waited for them."""

from __future__ import annotations

from threading import RLock

from jobqueue.db.opening import Opening
from jobqueue.worker.shared.scoreboard import ProcessSlot


class ConnectionCounts:
    """Adds to the counters of one slot of the scoreboard."""

    def __init__(self, slot: ProcessSlot) -> None:
        self._slot = slot
        # Reentrant, because a signal handler may open a connection while this thread counts.
        self._lock = RLock()

    def add(self, opening: Opening) -> None:
        """Count one. Observes jobqueue.db.opening."""
        with self._lock:
            self._slot.connections_opened += opening.opened
            self._slot.connections_refused += opening.refused
            self._slot.connection_wait_us += int(1e6 * opening.seconds)
