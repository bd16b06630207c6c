"""A relay in every worker process, so that a project with workers needs no separate process for its outbox."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from django.db import connections

from jobqueue.conf import load
from jobqueue.outbox import Relay
from jobqueue.outbox.relay import run
from jobqueue.outbox.watch import DeliveryInterrupted, interrupt

logger = logging.getLogger("jobqueue.outbox")

INTERVAL_SECONDS = 0.5
_RESTART_SECONDS = 10.0
#: how long the worker waits at its end for the current delivery, before it releases the event
_GRACE_SECONDS = 5.0
#: the process is replaced when this many threads hang in deliveries that were given up
HUNG_MAX = 3


class WorkerRelay:
    """A thread that relays, if JOBQUEUE["OUTBOX"] asks for it. One that hangs in a delivery is replaced by another."""

    def __init__(self, using: str, *, on_hung: Callable[[], None] = lambda: None) -> None:
        self._using, self._on_hung = using, on_hung
        self._now: _Thread | None = None
        self._hung: list[_Thread] = []

    def start(self) -> None:
        """Start the thread if the settings let workers relay."""
        settings = load().outbox
        if settings is not None and settings.in_workers:
            self._begin()

    def stop(self) -> None:
        """End after the current delivery; release its event if the delivery takes too long."""
        if self._now is not None:
            self._now.end()

    def _begin(self) -> None:
        self._now = _Thread(self._using, self._replace)
        self._now.start()

    def _replace(self, thread: int) -> None:
        """Start another thread in place of `thread`, whose delivery was given up."""
        old = self._now
        if old is None or old.ident != thread or old.over.is_set():
            return
        old.over.set()
        # This ends Python code. A thread that is blocked in C stays until the process ends.
        interrupt(thread)
        self._hung = [*filter(_Thread.is_alive, self._hung), old]
        if len(self._hung) >= HUNG_MAX:
            logger.warning("%d threads hang in deliveries; this worker process is replaced", len(self._hung))
            self._on_hung()
        self._begin()


class _Thread(threading.Thread):
    """Runs one relay until `over` is set."""

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
        # The watch may raise this a moment after the delivery has returned.
        with suppress(DeliveryInterrupted):
            while not self.over.is_set():
                self._run()

    def _run(self) -> None:
        try:
            self._relay = Relay(self._using, stopping=self.over.is_set, on_overdue=self._on_overdue)
            run(self._relay, self.over, interval_seconds=INTERVAL_SECONDS)
        except Exception:
            logger.exception("the relay of this worker failed; it starts again")
            self.over.wait(_RESTART_SECONDS)
        finally:
            if self._relay is not None:
                self._relay.close()
            connections.close_all()
