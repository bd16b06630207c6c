"""A thread of the monitor that repeats its duties, on a connection of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from django.db import Error, connections

from jobqueue import signals
from jobqueue.db import is_lost_connection
from jobqueue.db.outage import URGENT_SECONDS, Outage
from jobqueue.db.sessions import limit_idle_transactions
from jobqueue.exceptions import DatabaseBusy
from jobqueue.signals import Dispatch

logger = logging.getLogger("jobqueue.worker")

TICK_SECONDS = 0.2


class DutyThread:
    """Calls `round` every 0.2 s until end(). `round` calls do(duty) for each of its duties.

    A duty that raises does not end the thread. `doubt` is called when a duty lost its connection: the main thread then
    checks whether the database is reachable. `dispatch` delivers signals.
    """

    def __init__(
        self, name: str, round: Callable[[], None], using: str, doubt: Callable[[], None], dispatch: Dispatch | None
    ) -> None:
        self._name, self._round, self._using, self._doubt, self._dispatch = name, round, using, doubt, dispatch
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._refused = False
        self._outages: dict[str, Outage] = {}  # by duty that failed the last time
        self._ticked_at = time.monotonic()
        self._pause_seconds = TICK_SECONDS

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last tick(): a statement that hangs makes it grow. 0 before the start."""
        return time.monotonic() - self._ticked_at if self._thread is not None else 0.0

    def start(self) -> None:
        """Start the thread unless it runs. If the system has no room, log that once; the caller tries again later."""
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self.tick()
        try:
            thread.start()
        except RuntimeError as error:
            if not self._refused:
                logger.error("the monitor's thread %r cannot be started: %s; trying again", self._name, error)
            self._refused = True
        else:
            self._thread = thread

    def tick(self) -> None:
        """Record that a step of the round has ended."""
        self._ticked_at = time.monotonic()

    def next_soon(self, seconds: float) -> None:
        """Start the next round after `seconds`, or earlier if that was asked for too. Called in a round."""
        self._pause_seconds = min(self._pause_seconds, seconds)

    def end(self, most_seconds: float) -> None:
        """Wait up to `most_seconds` for a last round."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(most_seconds)

    def do(self, duty: Callable[[], None], name: str = "") -> bool:
        """Call `duty`, again with a new connection if the database refused it. Raises nothing; whether it succeeded.

        `name`: what the monitor cannot do if it fails, as log lines say; by default the name of the function.
        """
        name = name or duty.__name__.replace("_", " ")
        try:
            call_twice(duty, self._using)
        except Exception as error:
            self._complain(name, error)
            return False
        if (outage := self._outages.pop(name, None)) is not None:
            outage.over()
        return True

    def _work(self) -> None:
        signals.dispatch_via(self._dispatch)
        limit_idle_transactions(self._using)
        over = False
        while not over:
            over = self._ending.wait(self._pause_seconds)
            self._pause_seconds = TICK_SECONDS
            self.tick()
            self._round()
        connections[self._using].close()

    def _complain(self, name: str, error: Exception) -> None:
        lost, unexpected = is_lost_connection(error, self._using), not isinstance(error, (Error, DatabaseBusy))
        if lost:
            # The main thread logs that.
            self._doubt()
        elif unexpected:
            log_unexpected(name, error)
        if name not in self._outages:
            self._outages[name] = Outage(
                "the monitor", name, self._using, most_seconds=URGENT_SECONDS, rhythm="when it is due"
            )
        time.sleep(self._outages[name].met(error, quiet=lost or unexpected))


def call_twice(duty: Callable[[], None], using: str) -> None:
    """Call `duty`; once more, with a new connection, if the database refused it: one lost connection is no outage.

    Raises what the second call raises.
    """
    try:
        duty()
    except Error:
        connections[using].close()
        duty()


def log_unexpected(duty: str, error: Exception) -> None:
    """Log an error that no database caused. The monitor continues: its other duties do not depend on this one."""
    logger.error("the monitor cannot %s: an unexpected error; it continues and tries again", duty, exc_info=error)
