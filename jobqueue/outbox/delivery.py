"""One batch on its way: wave after wave, and of a key never more than one event at a time."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import Error, connections, transaction

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.db.user_code import raise_swallowed_errors
from jobqueue.exceptions import DatabaseBusy, DestinationDown, PayloadError
from jobqueue.failures import summary
from jobqueue.outbox import outcomes
from jobqueue.outbox.claiming import Batch
from jobqueue.outbox.destinations import Destination, Outcome
from jobqueue.outbox.event import Event
from jobqueue.outbox.outcomes import LeaseLost
from jobqueue.outbox.watch import GivenUp, Sending

if TYPE_CHECKING:
    from jobqueue.outbox.relay import Relay

logger = logging.getLogger("jobqueue.outbox")

#: how long an event that nobody here knows what to do with is left alone
PARK_SECONDS = 60.0
#: a crash repeats no delivery older than this, besides the one under way
MARK_SECONDS = 0.05


class Delivery:
    """Sends the events of one batch and writes down what came of each."""

    def __init__(self, relay: Relay, batch: Batch) -> None:
        self._relay, self._batch, self._using = relay, batch, relay.using
        self._arrived: set[int] = set()
        self._last_mark = time.monotonic()

    def run(self) -> None:
        """Until all are sent, or the relay is to stop; what is left goes back."""
        lanes = dict(self._batch.lanes)
        try:
            while lanes and not self._ended():
                wave = {lane: events[:1] if lane > 0 else events for lane, events in lanes.items()}
                self._send_wave([event for events in wave.values() for event in events])
                arrived = [lane for lane, (event, *_) in wave.items() if lane > 0 and event.id in self._arrived]
                # A key whose event did not arrive ends here.
                lanes = {lane: lanes[lane][1:] for lane in arrived if len(lanes[lane]) > 1}
        except GivenUp:
            # The watch has settled everything.
            pass
        except LeaseLost:
            self._relay.counts["lost"] += len(self._batch.left)
            logger.warning(
                "the lease on %d events ended before they were sent; another relay has them. If this repeats, raise "
                "OUTBOX['LEASE_SECONDS'] or lower its BATCH_SIZE.",
                len(self._batch.left),
            )
        finally:
            # If it is the database that failed, the lease runs out by itself.
            with suppress(Error, DatabaseBusy):
                outcomes.mark_processed(
                    [*self._batch.handed, *self._batch.unmarked], self._batch.token, using=self._using
                )
                outcomes.give_back(self._batch.left, self._batch.token, using=self._using)

    def _send_wave(self, wave: Sequence[Event]) -> None:
        groups: dict[Destination | None, list[Event]] = {}
        for event in wave:
            if not self._is_hopeless(event):
                groups.setdefault(self._relay.routes.find(event.topic), []).append(event)
        for destination, events in groups.items():
            if destination is None:
                self._park(events)
                continue
            for some in [events] if destination.bulk else [[event] for event in events]:
                if self._ended():
                    break
                self._send(destination, some)
        self._mark()

    def _send(self, destination: Destination, events: Sequence[Event]) -> None:
        pause = self._relay.down_seconds(destination)
        if not pause:
            self._hold()
            try:
                self._send_watched(destination, events)
            except DestinationDown as error:
                pause = self._relay.note_down(destination, error)
            else:
                self._relay.note_up(destination)
        if pause:
            self._put_off([event for event in events if event.id in self._batch.left], pause)
        if time.monotonic() - self._last_mark > MARK_SECONDS:
            self._mark()

    def _send_watched(self, destination: Destination, events: Sequence[Event]) -> None:
        with self._relay.watch.over(self._batch, events) as sending:
            if destination.in_database:
                self._send_in_transaction(destination, events, sending)
                return
            outcomes = destination.send(events)
        self._note(events, outcomes)

    def _send_in_transaction(self, destination: Destination, events: Sequence[Event], sending: Sending) -> None:
        """Effect and mark in one commit: exactly once. Alone each, if they cannot go together."""
        try:
            _raise_first(destination.send_before(events))
            retry_transient(lambda: self._transact(destination, events, sending), using=self._using)
        except (LeaseLost, DestinationDown, KeyboardInterrupt):
            raise
        except BaseException as error:
            # SystemExit too: a relay that it ended would meet the same event again and again.
            if len(events) == 1:
                self._failed(events[0], error)
                return
            for event in events:
                self._send_in_transaction(destination, [event], sending)
        else:
            self._arrive([event.id for event in events])

    def _transact(self, destination: Destination, events: Sequence[Event], sending: Sending) -> None:
        with sending.locking(), vendor(self._using).transaction(connections[self._using]):
            # Marked first: the rows are locked, and nobody can take them over before the commit.
            if outcomes.mark_processed([event.id for event in events], self._batch.token, using=self._using) != len(
                events
            ):
                raise LeaseLost
            with raise_swallowed_errors(self._using):
                _raise_first(destination.send(events))
            if transaction.get_rollback(using=self._using):
                raise transaction.TransactionManagementError("set_rollback(True) has undone the delivery.")

    def _ended(self) -> bool:
        return self._batch.ended or self._relay.stopping()

    def _note(self, events: Sequence[Event], outcomes: Sequence[Outcome]) -> None:
        down: BaseException | None = None
        for event, outcome in zip(events, outcomes, strict=True):
            if outcome is None:
                self._arrive([event.id])
                self._batch.unmarked.append(event.id)
            elif isinstance(outcome, DestinationDown):
                down = outcome
            else:
                self._failed(event, outcome)
        if down is not None:
            raise down

    def _arrive(self, ids: Sequence[int]) -> None:
        self._arrived.update(ids)
        self._batch.left.difference_update(ids)
        self._relay.counts["delivered"] += len(ids)

    def _failed(self, event: Event, error: BaseException) -> None:
        delay = outcomes.fail(event, self._batch.token, error, using=self._using)
        self._batch.left.discard(event.id)
        self._relay.note_failed(delay)
        then = "it becomes a dead letter" if delay is None else f"again in {delay:.1f} s"
        logger.warning("event %d (%r), attempt %d: %s; %s", event.id, event.topic, event.attempt, summary(error), then)

    def _is_hopeless(self, event: Event) -> bool:
        problem: BaseException | str | None = None
        if isinstance(event.payload, PayloadError):
            problem = event.payload
        elif event.attempt > load().outbox_settings.max_attempts:
            problem = "the relays that tried to deliver it fell silent, all of them; it was not tried again"
        if problem is None:
            return False
        outcomes.dead_letter(event, self._batch.token, problem, using=self._using)
        self._batch.left.discard(event.id)
        self._relay.counts["dead_lettered"] += 1
        logger.error("event %d (%r) is a dead letter: %s", event.id, event.topic, summary(problem))
        return True

    def _park(self, events: Sequence[Event]) -> None:
        topics = sorted({event.topic for event in events})
        logger.warning(
            "no route and no subscriber for %s; its events wait, their keys too", ", ".join(map(repr, topics))
        )
        self._put_off(events, PARK_SECONDS * random.uniform(0.8, 1.2))

    def _put_off(self, events: Sequence[Event], seconds: float) -> None:
        ids = [event.id for event in events]
        outcomes.give_back(ids, self._batch.token, using=self._using, delay_seconds=seconds)
        self._batch.left.difference_update(ids)
        self._relay.counts["put_off"] += len(ids)

    def _hold(self) -> None:
        """Whether the lease holds right before a send; renewed once a third of it has passed."""
        now = time.monotonic()
        if now >= self._batch.until:
            raise LeaseLost
        if now < self._batch.until - self._relay.lease_seconds * 2 / 3:
            return
        self._mark()
        if not outcomes.renew(
            self._batch.left, self._batch.token, lease_seconds=self._relay.lease_seconds, using=self._using
        ):
            raise LeaseLost
        self._batch.until = now + self._relay.lease_seconds

    def _mark(self) -> None:
        ids, self._batch.unmarked = self._batch.unmarked, []
        self._last_mark = time.monotonic()
        if outcomes.mark_processed(ids, self._batch.token, using=self._using) != len(ids):
            raise LeaseLost


def _raise_first(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
