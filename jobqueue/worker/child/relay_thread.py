"""A relay in every worker process, so that a project with workers needs no process of its own for its outbox."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from django.db import connections

from jobqueue.conf import load
from jobqueue.outbox import Relay, relay_loop
from jobqueue.outbox.watch import DeliveryInterrupted, interrupt

logger = logging.getLogger("jobqueue.outbox")

INTERVAL_SECONDS = 0.5
_RESTART_SECONDS = 10.0
#: how long the end of a worker waits for the delivery under way before it gives its event back
_GRACE_SECONDS = 5.0
#: threads that hang in deliveries that were given up, before the process is replaced
HUNG_MAX = 3


class WorkerRelay:
    """A thread, if JOBQUEUE["OUTBOX"] asks for one. One that hangs in a delivery is left alone, and another begins."""

    def __init__(self, using: str, *, on_hung: Callable[[], None] = lambda: None) -> None:
        self._using, self._on_hung = using, on_hung
        self._now: _Thread | None = None
        self._hung: list[_Thread] = []

    def start(self) -> None:
        """Begin, where workers are to relay."""
        settings = load().outbox
        if settings is not None and settings.in_workers:
            self._begin()

    def stop(self) -> None:
        """End after the delivery under way; one that takes too long for that is given back."""
        if self._now is not None:
            self._now.end()

    def _begin(self) -> None:
        self._now = _Thread(self._using, self._replace)
        self._now.start()

    def _replace(self, thread: int) -> None:
        """Called by the watch of a delivery that was given up."""
        old = self._now
        if old is None or old.ident != thread or old.over.is_set():
            return
        old.over.set()
        # Python code ends by this. What waits in C stays, for as long as this process.
        interrupt(thread)
        self._hung = [*filter(_Thread.is_alive, self._hung), old]
        if len(self._hung) >= HUNG_MAX:
            logger.warning("%d threads hang in deliveries; this worker process is replaced", len(self._hung))
            self._on_hung()
        self._begin()


class _Thread(threading.Thread):
    """One relay, until it is told that it is over."""

    def __init__(self, using: str, on_overdue: Callable[[int], None]) -> None:
        super().__init__(name="jobqueue-relay", daemon=True)
        self.over = threading.Event()
        self._using, self._on_overdue = using, on_overdue
        self._relay: Relay | None = None

    def end(self) -> None:
        self.over.set()
        self.join(_GRACE_SECONDS)
        if self._relay is not None and self.is_alive():
            self._relay.watch.release()

    def run(self) -> None:
        # Raised by the watch, perhaps a moment after the delivery has come back.
        with suppress(DeliveryInterrupted):
            while not self.over.is_set():
                self._run()

    def _run(self) -> None:
        try:
            self._relay = Relay(self._using, stopping=self.over.is_set, on_overdue=self._on_overdue)
            relay_loop.run(self._relay, self.over, interval_seconds=INTERVAL_SECONDS)
        except Exception:
            logger.exception("the relay of this worker failed; it begins again")
            self.over.wait(_RESTART_SECONDS)
        finally:
            if self._relay is not None:
                self._relay.close()
            connections.close_all()
