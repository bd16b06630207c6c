"""Relay claims events from the outbox and delivers them; run() does so until it is to stop, WorkerRelay in a worker."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol

from django.db import Error, connections

from jobqueue.conf import load
from jobqueue.db import is_refusal
from jobqueue.db.outage import Outage
from jobqueue.exceptions import DatabaseBusy
from jobqueue.outbox.claiming import EventClaimer
from jobqueue.outbox.delivery import Delivery
from jobqueue.outbox.delivery_log import DeliveryLog
from jobqueue.outbox.routes import Routes, Unrouted
from jobqueue.outbox.watch import DeliveryInterrupted, DeliveryWatch, interrupt

logger = logging.getLogger("jobqueue.outbox")


class Relay:
    """The relay of one thread; any number may run side by side. run_once() delivers one batch."""

    def __init__(
        self,
        using: str,
        *,
        topics: Collection[str] | None = None,
        batch_size: int | None = None,
        stopping: Callable[[], bool] = lambda: False,
        on_overdue: Callable[[int], None] = interrupt,
        on_look: Callable[[bool], None] = lambda watching: None,
    ) -> None:
        """on_overdue(thread) is called after DELIVERY_SECONDS of one delivery, when its events have been charged.

        on_look(True) is called with every look at a delivery, on_look(False) when there was none for a while.
        """
        settings = load().outbox_settings
        self.using, self._stopping = using, stopping
        self.routes = Routes(using)
        self.routes.prepare()
        self._log = DeliveryLog()
        self.watch = DeliveryWatch(using, settings, self._log, on_overdue=on_overdue, on_look=on_look)
        self._batch_size = batch_size or settings.batch_size
        self._topics = topics
        self._claimer = EventClaimer(using, lease_seconds=settings.lease_seconds, topics=topics)

    @property
    def counts(self) -> Counter[str]:
        """Events since the start, by what became of them."""
        return self._log.counts

    @property
    def idle(self) -> bool:
        """True if the last round of all keys and topics found nothing that is due."""
        return self._claimer.idle

    def run_once(self) -> int:
        """Claim a batch and deliver it; the number of its events. After 0 other lanes may have events: see `idle`.

        Raises DatabaseBusy, and the database's error when it is unreachable.
        """
        batch = self._claimer.claim(self._batch_size)
        if batch is None:
            return 0
        count = len(batch)
        delivery = Delivery(
            batch,
            self.using,
            routes=self.routes,
            watch=self.watch,
            log=self._log,
            stopping=self._stopping,
            topics=self._topics,
        )
        logger.debug("events claimed: %d, of %d keys and topics", count, len(batch.lanes))
        # Raised by the watch, which has settled the batch.
        with suppress(DeliveryInterrupted):
            delivery.run()
        return count

    def unrouted(self, *, log: bool = False) -> list[Unrouted]:
        """The waiting events that have no route and no subscriber in this process, by topic."""
        found = self.routes.unrouted(self._topics)
        if log:
            self._log.unrouted(found)
        return found

    def close(self) -> None:
        """Close the connections to brokers."""
        self.routes.close()


class DatabaseUnreachable(Exception):
    """The database was unreachable for longer than db_retry_seconds."""


class Flag(Protocol):
    """Tells a relay whether it is to stop, as a threading.Event does."""

    def is_set(self) -> bool: ...

    def wait(self, seconds: float, /) -> bool: ...


def run(
    relay: Relay,
    stop: Flag,
    *,
    interval_seconds: float,
    drain: bool = False,
    db_retry_seconds: float | None = None,
    on_idle: Callable[[], None] = lambda: None,
) -> None:
    """Relay until `stop` is set, or with `drain` until nothing is due; waits about `interval_seconds` when idle.

    While the database is unreachable it retries for db_retry_seconds (None: for ever), then raises DatabaseUnreachable.
    """
    outage = Outage("the relay", "claim events", relay.using, logger=logger)
    while not stop.is_set():
        try:
            relay.run_once()
        except (Error, DatabaseBusy) as error:
            if is_refusal(error, relay.using):
                raise
            pause = outage.met(error)
            if db_retry_seconds is not None and time.monotonic() - outage.since > db_retry_seconds:
                raise DatabaseUnreachable(str(error)) from error
            stop.wait(pause)
            continue
        outage.over()
        if relay.idle:
            on_idle()
            if drain:
                return
            stop.wait(interval_seconds * random.uniform(0.8, 1.2))


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
