"""Claims events from the outbox and delivers them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress

from jobqueue.conf import load
from jobqueue.outbox.claiming import EventClaimer
from jobqueue.outbox.delivery import Delivery
from jobqueue.outbox.delivery_log import DeliveryLog
from jobqueue.outbox.routes import Routes
from jobqueue.outbox.watch import DeliveryInterrupted, DeliveryWatch, interrupt


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
        self._claimer = EventClaimer(using, lease_seconds=settings.lease_seconds, topics=topics)

    @property
    def counts(self) -> Counter[str]:
        """Events since the start, by what became of them."""
        return self._log.counts

    @property
    def idle(self) -> bool:
        """Whether the last round of all keys and topics found nothing that is due."""
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
            batch, self.using, routes=self.routes, watch=self.watch, log=self._log, stopping=self._stopping
        )
        # Raised by the watch, which has settled the batch.
        with suppress(DeliveryInterrupted):
            delivery.run()
        return count

    def close(self) -> None:
        """Close the connections to brokers."""
        self.routes.close()
