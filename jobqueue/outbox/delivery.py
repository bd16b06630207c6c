"""Delivers a batch in waves: of a key one event at a time, without a key all that a topic has."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from django.db import Error, connections, transaction

from jobqueue.conf import load
from jobqueue.context.guards import raise_swallowed_errors
from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy, DestinationDown, PayloadError
from jobqueue.otel import delivering
from jobqueue.outbox import statements
from jobqueue.outbox.claiming import Batch
from jobqueue.outbox.delivery_log import DeliveryLog
from jobqueue.outbox.destinations import Destination, Outcome
from jobqueue.outbox.destinations.base import Event
from jobqueue.outbox.destinations.local import Functions
from jobqueue.outbox.routes import Routes, next_ids
from jobqueue.outbox.statements import EventLeaseLost
from jobqueue.outbox.watch import DeliveryWatch, Sending, SettledByWatch

logger = logging.getLogger("jobqueue.outbox")

#: how long events without a route and a subscriber in this process wait
PARK_SECONDS = 60.0
#: a crash repeats no delivery older than this, besides the one under way
MARK_SECONDS = 0.05


class Delivery:
    """Sends the events of one batch and writes what became of each."""

    def __init__(
        self,
        batch: Batch,
        using: str,
        *,
        routes: Routes,
        watch: DeliveryWatch,
        log: DeliveryLog,
        stopping: Callable[[], bool],
        topics: Collection[str] | None = None,
    ) -> None:
        self._batch, self._using, self._topics = batch, using, topics
        self._routes, self._watch, self._log, self._stopping = routes, watch, log, stopping
        self._arrived: set[int] = set()
        self._last_mark = time.monotonic()

    def run(self) -> None:
        """Send until all events are sent or the relay is to stop; release the rest."""
        lanes = dict(self._batch.lanes)
        try:
            while lanes and not self._ended():
                wave = {lane: events[:1] if lane > 0 else events for lane, events in lanes.items()}
                self._send_wave([event for events in wave.values() for event in events])
                arrived = [lane for lane, (event, *_) in wave.items() if lane > 0 and event.id in self._arrived]
                # A key whose event did not arrive ends here.
                lanes = {lane: lanes[lane][1:] for lane in arrived if len(lanes[lane]) > 1}
        except SettledByWatch:
            pass
        except EventLeaseLost:
            self._log.lost(len(self._batch.left))
        finally:
            # When the database fails, the lease expires by itself.
            with suppress(Error, DatabaseBusy):
                statements.mark_processed(
                    [*self._batch.handed, *self._batch.unmarked], self._batch.token, using=self._using
                )
                statements.release(self._batch.left, self._batch.token, using=self._using)

    def _send_wave(self, wave: Sequence[Event]) -> None:
        groups: dict[Destination | None, list[Event]] = {}
        for event in wave:
            if not self._is_dead_letter(event):
                groups.setdefault(self._routes.find(event.topic), []).append(event)
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
        pause = self._routes.down.pause_seconds(destination)
        if not pause:
            self._check_lease()
            try:
                self._send_watched(destination, events)
            except DestinationDown as error:
                pause = self._routes.down.note_down(destination, error)
            else:
                self._routes.down.note_up(destination)
        if pause:
            write = partial(statements.put_off, reason=self._routes.down.reason(destination))
            self._put_off([event for event in events if event.id in self._batch.left], pause, write)
        if time.monotonic() - self._last_mark > MARK_SECONDS:
            self._mark()

    def _send_watched(self, destination: Destination, events: Sequence[Event]) -> None:
        self._log.sending(events)
        with self._watch.over(self._batch, events) as sending:
            if destination.in_database:
                self._send_in_transaction(destination, events, sending)
                return
            with delivering(events, here=isinstance(destination, Functions)) as span:
                outcomes = destination.send(_with_headers(events, span.headers))
                span.delivered(outcomes)
        self._note(events, outcomes)

    def _send_in_transaction(self, destination: Destination, events: Sequence[Event], sending: Sending) -> None:
        """Commit effect and mark together: exactly once. If that fails for several events, try each alone."""
        try:
            with delivering(events, here=isinstance(destination, Functions)) as span:
                sent = _with_headers(events, span.headers)
                _raise_first(destination.send_before(sent))
                retry_transient("relay", lambda: self._transact(destination, sent, sending), using=self._using)
        except (EventLeaseLost, DestinationDown, KeyboardInterrupt):
            raise
        except BaseException as error:
            # SystemExit included: otherwise the event would end every relay that claims it.
            if len(events) == 1:
                self._fail(events[0], error)
                return
            for event in events:
                self._send_in_transaction(destination, [event], sending)
        else:
            self._arrive([event.id for event in events])

    def _transact(self, destination: Destination, events: Sequence[Event], sending: Sending) -> None:
        with sending.locking(), vendor(self._using).transaction(connections[self._using]):
            # Marked first: this locks the rows, so that nobody takes the events over before the commit.
            ids = [event.id for event in events]
            if statements.mark_processed(ids, self._batch.token, using=self._using) != len(ids):
                raise EventLeaseLost
            with raise_swallowed_errors(self._using):
                _raise_first(destination.send(events))
            if transaction.get_rollback(using=self._using):
                raise transaction.TransactionManagementError("set_rollback(True) has undone the delivery.")

    def _ended(self) -> bool:
        return self._batch.ended or self._stopping()

    def _note(self, events: Sequence[Event], outcomes: Sequence[Outcome]) -> None:
        down: BaseException | None = None
        for event, outcome in zip(events, outcomes, strict=True):
            if outcome is None:
                self._arrive([event.id])
                self._batch.unmarked.append(event.id)
            elif isinstance(outcome, DestinationDown):
                down = outcome
            else:
                self._fail(event, outcome)
        if down is not None:
            raise down

    def _arrive(self, ids: Sequence[int]) -> None:
        self._arrived.update(ids)
        self._batch.left.difference_update(ids)
        self._log.counts["delivered"] += len(ids)

    def _fail(self, event: Event, error: BaseException) -> None:
        delay = statements.fail(event, self._batch.token, error, using=self._using)
        self._batch.left.discard(event.id)
        self._log.failed(event, error, delay, logging.WARNING)

    def _is_dead_letter(self, event: Event) -> bool:
        """Make an event that no attempt can help a dead letter; return whether it is one."""
        problem: BaseException | str
        if isinstance(event.payload, PayloadError):
            problem = event.payload
        elif event.attempt > load().outbox_settings.max_attempts:
            problem = "every relay that tried to deliver it stopped renewing its lease; it was not tried again"
        else:
            return False
        statements.dead_letter(event, self._batch.token, problem, using=self._using)
        self._batch.left.discard(event.id)
        self._log.dead_lettered(event, problem)
        return True

    def _park(self, events: Sequence[Event]) -> None:
        self._put_off(events, PARK_SECONDS * random.uniform(0.8, 1.2), statements.park)
        if self._log.may_tell_unrouted(events):
            found = self._routes.unrouted(self._topics, known=events)
            self._log.unrouted_met(found, events, next_ids(found, using=self._using))

    def _put_off(self, events: Sequence[Event], seconds: float, write: Callable[..., object]) -> None:
        ids = [event.id for event in events]
        write(ids, self._batch.token, using=self._using, delay_seconds=seconds)
        self._batch.left.difference_update(ids)
        self._log.counts["put_off"] += len(ids)

    def _check_lease(self) -> None:
        """Renew the lease once a third of it has passed. Raises EventLeaseLost after its end."""
        now, lease_seconds = time.monotonic(), self._watch.lease_seconds
        if now >= self._batch.until:
            raise EventLeaseLost
        if now < self._batch.until - lease_seconds * 2 / 3:
            return
        self._mark()
        if not statements.renew(self._batch.left, self._batch.token, lease_seconds=lease_seconds, using=self._using):
            raise EventLeaseLost
        self._batch.until = now + lease_seconds

    def _mark(self) -> None:
        ids, self._batch.unmarked = self._batch.unmarked, []
        self._last_mark = time.monotonic()
        if statements.mark_processed(ids, self._batch.token, using=self._using) != len(ids):
            raise EventLeaseLost


def _raise_first(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


def _with_headers(events: Sequence[Event], headers: Mapping[str, str]) -> Sequence[Event]:
    """The events with what their receivers need to find the span of this delivery."""
    return [replace(event, trace=headers) for event in events] if headers else events
