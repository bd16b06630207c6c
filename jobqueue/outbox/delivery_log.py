"""What became of a relay's events: counters since its start, and log lines."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from jobqueue.failures import summary
from jobqueue.masking import mask_text
from jobqueue.outbox.destinations.base import Event
from jobqueue.outbox.routes import Unrouted

logger = logging.getLogger("jobqueue.outbox")

#: called with the topic and the number of the attempt of each delivery
Observer: TypeAlias = Callable[[str, int], None]
_observers: list[Observer] = []
#: how often a relay logs the events of a topic without a route and a subscriber
UNROUTED_SECONDS = 60.0
_WAY_OUT = (
    "Add a @subscriber to <app>/tasks.py, route the topic in JOBQUEUE['OUTBOX']['ROUTES'], or give it up with "
    "jobqueue.outbox.skip(%d) or in the admin."
)


def observe_deliveries(observer: Observer) -> None:
    """Call `observer` before each delivery in this process and its forks. It must not use the database, nor raise."""
    if observer not in _observers:
        _observers.append(observer)


class DeliveryLog:
    """Counts and logs the outcomes of one relay."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(delivered=0, failed=0, dead_lettered=0, put_off=0, lost=0)
        #: topic -> since when its unrouted events are not logged, but for events up to this id; 0: it was logged then
        self._quiet: dict[str, tuple[float, int]] = {}

    def sending(self, events: Sequence[Event]) -> None:
        """Report the deliveries that begin now to observers."""
        for observer in _observers:
            for event in events:
                observer(event.topic, event.attempt)

    def failed(self, event: Event, error: BaseException | str, delay_seconds: float | None, level: int) -> None:
        """Count and log a failed attempt; delay_seconds None: the event is a dead letter now."""
        self.counts["failed" if delay_seconds is not None else "dead_lettered"] += 1
        then = "it becomes a dead letter" if delay_seconds is None else f"again in {delay_seconds:.1f} s"
        logger.log(level, "event %d (%r), attempt %d: %s; %s", event.id, event.topic, event.attempt, _told(error), then)

    def dead_lettered(self, event: Event, problem: BaseException | str) -> None:
        """Count and log an event that was not tried again."""
        self.counts["dead_lettered"] += 1
        logger.error("event %d (%r) becomes a dead letter: %s", event.id, event.topic, _told(problem))

    def may_tell_unrouted(self, events: Sequence[Event]) -> bool:
        """Return whether unrouted() may log something about one of these events, which this relay has met."""
        oldest = time.monotonic() - UNROUTED_SECONDS
        self._quiet = {topic: quiet for topic, quiet in self._quiet.items() if quiet[0] > oldest}
        return any(event.id <= self._quiet.get(event.topic, (0.0, event.id))[1] for event in events)

    def unrouted(self, found: Sequence[Unrouted]) -> None:
        """Log the waiting events that have no route and no subscriber in this process, and those behind them."""
        for each in found:
            logger.warning("no route and no subscriber for %s. " + _WAY_OUT, each, min(each.ids))
            self._quiet[each.topic] = time.monotonic(), 0

    def unrouted_met(self, found: Sequence[Unrouted], events: Sequence[Event], next_ids: Mapping[str, int]) -> None:
        """Do the same for topics that were not logged within UNROUTED_SECONDS, if this relay has met their next events.

        Of several relays, the one that meets it logs the topic. `events` are those that this relay has just met.
        """
        met = {event.id for event in events}
        for each in found:
            since, but_for = self._quiet.get(each.topic, (time.monotonic(), -1))
            if but_for == 0:
                continue
            next_id = next_ids.get(each.topic)
            if next_id is None or next_id in met:
                self.unrouted([each])
            else:
                self._quiet[each.topic] = since, next_id

    def lost(self, count: int) -> None:
        """Count and log events whose lease ended before they were sent."""
        self.counts["lost"] += count
        logger.warning(
            "the lease on %d events ended before they were sent; another relay has them. If this repeats, raise "
            "OUTBOX['LEASE_SECONDS'] or lower its BATCH_SIZE.",
            count,
        )


def _told(error: BaseException | str) -> str:
    """An error for a line of the log. Masked here: the formatters of a project mask nothing."""
    return mask_text(error if isinstance(error, str) else summary(error))
