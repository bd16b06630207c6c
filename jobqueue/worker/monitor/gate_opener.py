"""The monitor's thread that opens gates at their time. It starts when a gate has a time for the first time."""

from __future__ import annotations

import time
from collections.abc import Callable

from jobqueue.gates.timing import TICK_SECONDS, any_timed, open_due
from jobqueue.signals import Dispatch
from jobqueue.worker.monitor.duty_thread import DutyThread

#: so long after the last gate with a time, the thread goes on looking often
BUSY_SECONDS = 10.0
IDLE_SECONDS = 1.0


class GateOpener:
    """Opens what is due every TICK_SECONDS while there are gates with a time, else every second."""

    def __init__(self, using: str, doubt: Callable[[], None], dispatch: Dispatch | None) -> None:
        self._using = using
        self._busy_until = 0.0
        self.thread = DutyThread("gates", self.round, using, doubt, dispatch)

    def wake(self) -> None:
        """Start the thread if a gate has a time; called every second, with a connection of the caller's thread."""
        if any_timed(self._using):
            self.thread.start()

    def round(self) -> None:
        """Open what is due."""
        self.thread.do(self.open)
        self.thread.next_soon(TICK_SECONDS if time.monotonic() < self._busy_until else IDLE_SECONDS)

    def open(self) -> None:
        """Open the gates whose time has come."""
        open_due(using=self._using)
        if any_timed(self._using):
            self._busy_until = time.monotonic() + BUSY_SECONDS
