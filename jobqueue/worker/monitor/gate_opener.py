"""The monitor's thread that opens gates at their time, and tells the children that operators have changed something.

It starts when a gate has a time for the first time, or a job waits at one, or anything is limited or paused.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from jobqueue.gates.timing import TICK_SECONDS, Changes, any_timed, any_waits, open_due
from jobqueue.signals import Dispatch
from jobqueue.worker.monitor.duty_thread import DutyThread
from jobqueue.worker.shared.scoreboard import Scoreboard

#: so long after the last job that waited at a gate, the thread goes on looking often
BUSY_SECONDS = 10.0
#: between two looks at what operators have changed, where that may let jobs start
CHANGES_SECONDS = 0.1
#: between two looks for what is due, right after something was opened
AGAIN_SECONDS = 0.005
#: between two looks whether any job waits at a gate, and between two looks at all where none does
IDLE_SECONDS = 1.0


class GateOpener:
    """Opens what is due every TICK_SECONDS while jobs wait, and anything is limited or paused; else every second.

    As soon as a child has closed a gate, it looks often. `opens`: False to leave the opening to other workers.
    """

    def __init__(
        self,
        using: str,
        scoreboard: Scoreboard,
        doubt: Callable[[], None],
        dispatch: Dispatch | None,
        *,
        opens: bool = True,
    ) -> None:
        self._using, self._scoreboard, self._opens = using, scoreboard, opens
        self._changes = Changes(using)
        self._busy_until = self._next_changes = self._next_gates = self._next_idle = 0.0
        self._met = False
        self.thread = DutyThread("gates", self.round, using, doubt, dispatch)
        self.thread.next_soon(0.0)

    def wake(self) -> None:
        """Start the thread if a gate has a time; called every second, with a connection of the caller's thread."""
        # Jobs that wait for something else were closed before the start, or a child tells of them.
        first, self._met = not self._met, True
        if any_timed(self._using) or (first and any_waits(self._using)):
            self.thread.start()

    def wake_if_asked(self) -> None:
        """Start the thread if a child has closed a gate, or knows a limit, a pause or an open breaker. No statement."""
        if self._is_asked():
            self.thread.start()

    def round(self) -> None:
        """Look at what is due to be looked at."""
        self.thread.next_soon(TICK_SECONDS)
        now = time.monotonic()
        if self._is_asked():
            self._scoreboard.header.gates_closed = 0
            self._stay_busy()
        is_busy = now < self._busy_until
        if now >= self._next_idle:
            self._next_idle = now + IDLE_SECONDS
            self.thread.do(self.look_for_waiting)
        if is_busy and now >= self._next_changes:
            self.thread.do(self.look_for_changes)
        if self._opens and now >= self._next_gates:
            self._next_gates = now + (TICK_SECONDS if is_busy else IDLE_SECONDS)
            self.thread.do(self.open, "open gates")

    def look_for_waiting(self) -> None:
        """Go on looking often if any job waits at a gate."""
        if any_timed(self._using) or any_waits(self._using):
            self._stay_busy()

    def look_for_changes(self) -> None:
        """Have the children read the rules again if they have changed."""
        self._next_changes = time.monotonic() + CHANGES_SECONDS
        if self._changes.look():
            self._scoreboard.header.rules_turn += 1
            self._scoreboard.wakeups.wake_all()
            # What may start now was given a time.
            self._next_gates = 0.0

    def open(self) -> None:
        """Open the gates whose time has come, and wake a child for what was opened."""
        self._changes.open_again()
        # Claims by the rules of before a change would close again what is opened after it.
        if open_due(using=self._using, before=self.look_for_changes):
            self._stay_busy()
            self._scoreboard.wakeups.wake()
            # Of some gates only a part was opened.
            self._next_gates = 0.0
            self.thread.next_soon(AGAIN_SECONDS)

    def _stay_busy(self) -> None:
        now = time.monotonic()
        self._busy_until, self._next_gates = now + BUSY_SECONDS, min(self._next_gates, now + TICK_SECONDS)

    def _is_asked(self) -> bool:
        slots = self._scoreboard.slots
        return bool(self._scoreboard.header.gates_closed) or any(slot.ruled for slot in slots if slot.alive)
