"""A thread of the monitor that does its duties round after round, on a connection of its own."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from django.db import Error, connections

from jobqueue import signals
from jobqueue.db import Fault, fault_vendor
from jobqueue.exceptions import DatabaseBusy
from jobqueue.signals import Dispatch

logger = logging.getLogger("jobqueue.worker")

TICK_SECONDS = 0.2


class DutyThread:
    """Calls `round` every 0.2 s, or when it has asked for, until end(); what goes wrong inside do() does not end it.

    `doubt` is called when a session was lost: the main thread then checks whether the database is reachable.
    `dispatch` delivers signals.
    """

    def __init__(
        self, name: str, round: Callable[[], None], using: str, doubt: Callable[[], None], dispatch: Dispatch | None
    ) -> None:
        self._name, self._round, self._using, self._doubt, self._dispatch = name, round, using, doubt, dispatch
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._refused = False
        self._failing: set[str] = set()
        self._ticked_at = time.monotonic()
        self._pause_seconds = TICK_SECONDS

    @property
    def silent_seconds(self) -> float:
        """How long ago a round, or a step of one, has ended: a statement that hangs makes it grow."""
        return time.monotonic() - self._ticked_at if self._thread is not None else 0.0

    def start(self) -> None:
        """Start the thread if it does not run. Where there is no room for it that is said once; call again later."""
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
        """Say that the round goes on: a step of it has ended."""
        self._ticked_at = time.monotonic()

    def next_soon(self, seconds: float) -> None:
        """Called in a round: the next one comes after `seconds`."""
        self._pause_seconds = seconds

    def end(self, most_seconds: float) -> None:
        """Let it do one last round, and wait for its end."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(most_seconds)

    def do(self, duty: Callable[[], None]) -> bool:
        """Do `duty`, with a new session when the one it had was lost; whether it was done."""
        try:
            again(duty, self._using)
        except Exception as error:
            self._complain(duty, error)
            return False
        self._failing.discard(duty.__name__)
        return True

    def _work(self) -> None:
        signals.dispatch_via(self._dispatch)
        over = False
        while not over:
            over = self._ending.wait(self._pause_seconds)
            self._pause_seconds = TICK_SECONDS
            self.tick()
            self._round()
        connections[self._using].close()

    def _complain(self, duty: Callable[[], None], error: Exception) -> None:
        away = isinstance(error, Error) and fault_vendor(self._using).fault(error) is Fault.GONE
        if away:
            self._doubt()
        elif not isinstance(error, (Error, DatabaseBusy)):
            # A thread that dies of one duty would do none of the others either.
            logger.error(
                "%s met an unexpected error; the monitor goes on, and tries it again", duty.__name__, exc_info=error
            )
        elif duty.__name__ not in self._failing:
            logger.warning("the monitor's duty %s failed: %s; it is tried again", duty.__name__, error)
        self._failing.add(duty.__name__)
        connections[self._using].close()
        time.sleep(random.uniform(0.1, 0.5))


def again(duty: Callable[[], None], using: str) -> None:
    """Do `duty`; once more if the database refused it: one lost session is no outage, and the second try has a new one.

    Raises what the second try raises.
    """
    try:
        duty()
    except Error:
        connections[using].close()
        duty()
