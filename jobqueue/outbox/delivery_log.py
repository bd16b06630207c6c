"""What became of a relay's events: counters since its start, and log lines."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence

from jobqueue.failures import summary
from jobqueue.outbox.event import Event
from jobqueue.outbox.unrouted import Unrouted

logger = logging.getLogger("jobqueue.outbox")


#: how often a relay logs the events of a topic without a route and a subscriber
UNROUTED_SECONDS = 60.0
_WAY_OUT = (
    "Add a @subscriber to <app>/tasks.py, route the topic in JOBQUEUE['OUTBOX']['ROUTES'], or give it up with "
    "jobqueue.outbox.skip(%d) or in the admin."
)


class DeliveryLog:
    """Counts and logs the outcomes of one relay."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(delivered=0, failed=0, dead_lettered=0, put_off=0, lost=0)
        self._unrouted_told: dict[str, float] = {}

    def failed(self, event: Event, error: BaseException | str, delay_seconds: float | None, level: int) -> None:
        """Count and log a failed attempt; delay_seconds None: the event is a dead letter now."""
        self.counts["failed" if delay_seconds is not None else "dead_lettered"] += 1
        then = "it becomes a dead letter" if delay_seconds is None else f"again in {delay_seconds:.1f} s"
        text = error if isinstance(error, str) else summary(error)
        logger.log(level, "event %d (%r), attempt %d: %s; %s", event.id, event.topic, event.attempt, text, then)

    def dead_lettered(self, event: Event, problem: BaseException | str) -> None:
        """Count and log an event that was not tried again."""
        self.counts["dead_lettered"] += 1
        logger.error("event %d (%r) becomes a dead letter: %s", event.id, event.topic, summary(problem))

    def may_tell_unrouted(self, topics: Collection[str]) -> bool:
        """Whether one of the topics was not logged by unrouted() within UNROUTED_SECONDS."""
        oldest = time.monotonic() - UNROUTED_SECONDS
        return any(self._unrouted_told.get(topic, oldest) <= oldest for topic in topics)

    def unrouted(self, found: Sequence[Unrouted]) -> None:
        """Log the waiting events that have no route and no subscriber in this process, and those behind them."""
        self._unrouted_told = dict.fromkeys((each.topic for each in found), time.monotonic())
        for each in found:
            logger.warning("no route and no subscriber for %s. " + _WAY_OUT, each, min(each.ids))

    def lost(self, count: int) -> None:
        """Count and log events whose lease ended before they were sent."""
        self.counts["lost"] += count
        logger.warning(
            "the lease on %d events ended before they were sent; another relay has them. If this repeats, raise "
            "OUTBOX['LEASE_SECONDS'] or lower its BATCH_SIZE.",
            count,
        )
