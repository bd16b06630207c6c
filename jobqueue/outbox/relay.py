"""Takes events out of the outbox and has them delivered."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress

from jobqueue.conf import load
from jobqueue.outbox.claiming import Claimer
from jobqueue.outbox.delivery import Delivery
from jobqueue.outbox.destinations import Destination
from jobqueue.outbox.routes import Routes
from jobqueue.outbox.watch import DeliveryGivenUp, Watch, interrupt

logger = logging.getLogger("jobqueue.outbox")

#: first and longest wait after a destination could not be reached
DOWN_SECONDS = (0.5, 30.0)


class Relay:
    """One relay of one thread; any number may run side by side. run_once() is one batch."""

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
        settings = load().outbox_settings
        self.using, self.stopping = using, stopping
        self.lease_seconds = settings.lease_seconds
        self.routes = Routes(using)
        self.routes.prepare()
        #: events since the start, by what became of them
        self.counts: Counter[str] = Counter(delivered=0, failed=0, dead_lettered=0, put_off=0, lost=0)
        #: on_overdue(thread) is called when a delivery has taken longer than DELIVERY_SECONDS and was charged; on_look
        #: with every look at a delivery, and with False when there are none for a while
        self.watch = Watch(
            using,
            lease_seconds=settings.lease_seconds,
            delivery_seconds=settings.delivery_seconds,
            on_overdue=on_overdue,
            on_failed=self.note_failed,
            on_look=on_look,
        )
        self._batch_size = batch_size or settings.batch_size
        self._claimer = Claimer(using, lease_seconds=settings.lease_seconds, topics=topics)
        self._down: dict[Destination, tuple[int, float]] = {}

    @property
    def idle(self) -> bool:
        """The last round of all keys and topics has found nothing that is due."""
        return self._claimer.idle

    def run_once(self) -> int:
        """Claim a batch and deliver it; how many events it had. 0 can mean that there are more elsewhere: see `idle`.

        Raises DatabaseBusy, and what the database raises when it is away.
        """
        batch = self._claimer.claim(self._batch_size)
        if batch is None:
            return 0
        count = len(batch)
        # Raised by the watch, which has settled the batch.
        with suppress(DeliveryGivenUp):
            Delivery(self, batch).run()
        return count

    def close(self) -> None:
        """End the connections to brokers."""
        self.routes.close()

    def note_failed(self, delay_seconds: float | None) -> None:
        """A delivery has failed; None: the event becomes a dead letter."""
        self.counts["failed" if delay_seconds is not None else "dead_lettered"] += 1

    def down_seconds(self, destination: Destination) -> float:
        """How long a destination that could not be reached is left alone from now on; 0 = it may be tried."""
        _, until = self._down.get(destination, (0, 0.0))
        return max(0.0, until - time.monotonic())

    def note_down(self, destination: Destination, error: BaseException) -> float:
        """It could not be reached; the seconds until the next try, longer each time."""
        failures, _ = self._down.get(destination, (0, 0.0))
        first, longest = DOWN_SECONDS
        pause: float = min(longest, first * 2 ** min(failures, 10)) * random.uniform(0.8, 1.2)
        self._down[destination] = (failures + 1, time.monotonic() + pause)
        level = logging.WARNING if failures == 0 else logging.DEBUG
        logger.log(level, "a destination cannot be reached (%s); its events wait, trying again in %.1f s", error, pause)
        return pause

    def note_up(self, destination: Destination) -> None:
        """It takes events."""
        if self._down.pop(destination, None):
            logger.warning("the destination answers again")
