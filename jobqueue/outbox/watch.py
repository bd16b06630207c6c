"""What a delivery under way needs from another thread: its lease is renewed, and it is ended when it takes too long."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import Error, connections

from jobqueue.db.cutting import Wait
from jobqueue.exceptions import DatabaseBusy
from jobqueue.outbox import settling
from jobqueue.outbox.claiming import Batch
from jobqueue.outbox.event import Event
from jobqueue.outbox.settling import LeaseLost

logger = logging.getLogger("jobqueue.outbox")

#: a delivery that takes longer keeps its own events only: the rest of the batch goes to other relays
SLOW_SECONDS = 2.0
#: what writing to the database may take before the watch goes on without knowing
WRITE_SECONDS = 5.0
_TICK_SECONDS = 0.5
#: looks without a delivery before the thread ends
_IDLE_LOOKS = 4


class GivenUp(LeaseLost):
    """The delivery took too long: its batch was settled meanwhile."""


class DeliveryGivenUp(BaseException):
    """Raised in a thread whose delivery was given up, when it comes back to Python code."""


@dataclass(eq=False, slots=True)
class Sending:
    """One call of a destination. Times are of this process: what it was suspended for does not count."""

    batch: Batch
    events: Sequence[Event]
    connection: Any
    #: what ends its transaction
    wait: Wait = field(init=False)
    thread: int = field(default_factory=threading.get_ident)
    seconds: float = 0.0
    looked_at: float = field(default_factory=time.monotonic)
    #: the rows of the events are locked by the delivery's own transaction: nobody can take them, and we cannot write
    in_transaction: bool = False
    #: the rest of the batch was given back
    alone: bool = False
    #: somebody else has settled its events: what comes of it does not count any more
    given_up: bool = False
    told: int = 0

    def __post_init__(self) -> None:
        self.wait = Wait(self.connection)

    @property
    def ids(self) -> set[int]:
        """Of the events that nothing has become of yet."""
        return {event.id for event in self.events} & set(self.batch.left)

    @contextmanager
    def locking(self) -> Iterator[None]:
        """A transaction of the delivery that locks the rows of its events."""
        self.in_transaction = True
        # Another one when the transaction is done again.
        self.wait = Wait(self.connection)
        try:
            with self.wait:
                yield
        finally:
            self.in_transaction = False


def interrupt(thread: int) -> None:
    """Raise DeliveryGivenUp in a thread; delivered when it next runs Python code, not while it waits in C."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(DeliveryGivenUp))


class Watch:
    """Watches the deliveries of one relay, by a thread that lives while there are some."""

    def __init__(
        self,
        using: str,
        *,
        lease_seconds: float,
        delivery_seconds: float | None,
        on_overdue: Callable[[int], None] = interrupt,
        on_failed: Callable[[float | None], None] = lambda delay: None,
        on_look: Callable[[bool], None] = lambda watching: None,
    ) -> None:
        self._using, self._lease_seconds, self._delivery_seconds = using, lease_seconds, delivery_seconds
        self._on_overdue, self._on_failed, self._on_look = on_overdue, on_failed, on_look
        self._tick_seconds = min(_TICK_SECONDS, lease_seconds / 10, (delivery_seconds or lease_seconds) / 10)
        self._lock = threading.Lock()
        self._sending: Sending | None = None
        self._watching = False
        self._writing: threading.Thread | None = None

    @contextmanager
    def over(self, batch: Batch, events: Sequence[Event]) -> Iterator[Sending]:
        """A block that delivers `events`. Raises GivenUp at its end if it was given up meanwhile."""
        sending = Sending(batch, events, connections[self._using])
        with self._lock:
            self._sending = sending
            if not self._watching:
                self._on_look(True)
                self._watching = self._start(self._run) is not None
        try:
            yield sending
        finally:
            with self._lock:
                self._sending = None
            if sending.alone:
                batch.ended = True
            if sending.given_up:
                batch.left.clear()
                batch.handed.clear()
                raise GivenUp

    def let_go(self) -> None:
        """Give back, without a charge, what is being delivered and all that is left with it: this process ends now."""
        with self._lock:
            sending, self._sending = self._sending, None
            if sending is None:
                return
            sending.given_up = True
            delivered, others = _rest(sending)
            others |= sending.ids
        topics = ", ".join(sorted({repr(event.topic) for event in sending.events}))
        logger.warning("stopping while a delivery of %s is under way; its event goes back, without a charge", topics)
        self._free_rows(sending)
        self._write(partial(self._give_back, sending.batch, delivered, others))

    def _run(self) -> None:
        idle = 0
        while True:
            time.sleep(self._tick_seconds)
            with self._lock:
                sending = self._sending
                idle = 0 if sending else idle + 1
                if idle >= _IDLE_LOOKS:
                    self._watching = False
                    self._on_look(False)
                    return
            self._on_look(True)
            if sending is None:
                continue
            try:
                self._look(sending)
            except Exception:
                # It must not end: nobody else looks.
                logger.exception("a look at a delivery under way failed")

    def _look(self, sending: Sending) -> None:
        now = time.monotonic()
        # A process that was stopped, or had no processor, is not to find its delivery overdue.
        sending.seconds += min(now - sending.looked_at, 2 * self._tick_seconds)
        sending.looked_at = now
        if self._delivery_seconds is not None and sending.seconds >= self._delivery_seconds:
            self._give_up(sending)
            return
        if sending.seconds >= min(SLOW_SECONDS, self._lease_seconds / 3):
            self._leave_alone(sending)
        if now >= sending.batch.until - self._lease_seconds * 2 / 3 and not sending.in_transaction:
            self._write(partial(self._renew, sending), wait_seconds=0)
        if sending.seconds >= self._lease_seconds * (sending.told + 1):
            sending.told = int(sending.seconds / self._lease_seconds)
            self._tell(sending)

    def _tell(self, sending: Sending) -> None:
        limit = self._delivery_seconds
        then = "waits for it without limit" if limit is None else f"gives it up after {limit:g} s"
        for event in sending.events:
            logger.warning(
                "event %d (%r), attempt %d: its delivery has been under way for %.0f s; the relay keeps its lease and "
                "%s (OUTBOX['DELIVERY_SECONDS']). It is here:\n%s",
                event.id, event.topic, event.attempt, sending.seconds, then, _stack(sending.thread),
            )  # fmt: skip

    def _leave_alone(self, sending: Sending) -> None:
        """The rest of the batch must not wait for a slow delivery."""
        with self._lock:
            if self._sending is not sending or sending.alone or self._is_writing():
                return
            sending.alone = True
            rest = _rest(sending)
        self._write(partial(self._give_back, sending.batch, *rest), wait_seconds=0)

    def _give_back(self, batch: Batch, delivered: Collection[int], others: Collection[int]) -> None:
        settling.mark_processed(delivered, batch.token, using=self._using)
        settling.give_back(others, batch.token, using=self._using)

    def _renew(self, sending: Sending) -> None:
        begun = time.monotonic()
        ids = sending.ids
        if settling.renew(ids, sending.batch.token, lease_seconds=self._lease_seconds, using=self._using):
            sending.batch.until = max(sending.batch.until, begun + self._lease_seconds)

    def _give_up(self, sending: Sending) -> None:
        """Charge the events, free the others, and let the relay be replaced."""
        with self._lock:
            if self._sending is not sending:
                return
            self._sending, sending.given_up = None, True
            ids, rest = sending.ids, _rest(sending)
        stack = _stack(sending.thread)
        self._free_rows(sending)
        self._write(partial(self._charge, sending, ids, stack))
        self._write(partial(self._give_back, sending.batch, *rest))
        self._on_overdue(sending.thread)

    def _charge(self, sending: Sending, ids: Collection[int], stack: str) -> None:
        told = (
            f"the delivery took longer than OUTBOX['DELIVERY_SECONDS'] ({self._delivery_seconds:g} s) and was given "
            f"up. It was here:\n{stack}"
        )
        for event in sending.events:
            if event.id in ids:
                with suppress(LeaseLost):
                    delay = settling.fail(event, sending.batch.token, told, using=self._using)
                    self._on_failed(delay)
                    then = "it is set aside" if delay is None else f"again in {delay:.1f} s"
                    logger.error("event %d (%r), attempt %d: %s; %s", event.id, event.topic, event.attempt, told, then)

    def _free_rows(self, sending: Sending) -> None:
        if sending.in_transaction:
            sending.wait.end()

    def _write(self, work: Callable[[], None], wait_seconds: float = WRITE_SECONDS) -> None:
        """Have `work` done on a connection of its own, one at a time; a database that hangs does not stop the watch."""
        if self._writing is not None:
            self._writing.join(wait_seconds)
            if self._is_writing():
                return
        self._writing = self._start(partial(self._do, work))
        if wait_seconds and self._writing is not None:
            self._writing.join(wait_seconds)

    def _is_writing(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (Error, DatabaseBusy) as error:
            # What was not written ends with the lease.
            logger.warning("the lease of a delivery under way could not be written: %s", error)
        except Exception:
            logger.exception("the lease of a delivery under way could not be written")
        finally:
            connections.close_all()

    def _start(self, target: Callable[[], None]) -> threading.Thread | None:
        try:
            thread = threading.Thread(target=target, name="jobqueue-relay-watch", daemon=True)
            thread.start()
        except RuntimeError as error:
            logger.warning("no room for the thread that renews the leases of deliveries: %s", error)
            return None
        return thread


def _rest(sending: Sending) -> tuple[list[int], set[int]]:
    """What was delivered before and is not marked yet, and what was not sent: nothing more of it may be sent."""
    batch = sending.batch
    delivered, batch.unmarked = batch.unmarked, []
    # Written once more at the end of the batch, should the watch not come to it.
    batch.handed += delivered
    return delivered, set(batch.left) - {event.id for event in sending.events}


def _stack(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)[-12:]) if frame else "(ended)"
