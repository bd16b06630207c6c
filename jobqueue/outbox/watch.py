"""Watches deliveries from another thread: renews their leases, and ends those that take too long."""

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

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.conf import OutboxSettings
from jobqueue.db.time_limit import StatementTimer
from jobqueue.exceptions import DatabaseBusy
from jobqueue.outbox import statements
from jobqueue.outbox.claiming import Batch
from jobqueue.outbox.delivery_log import DeliveryLog
from jobqueue.outbox.destinations.base import Event
from jobqueue.outbox.statements import EventLeaseLost

logger = logging.getLogger("jobqueue.outbox")

#: a delivery that takes longer keeps only its own events; the rest of the batch is released for other relays
SLOW_SECONDS = 2.0
_TICK_SECONDS = 0.5
#: the thread ends after so many looks without a delivery
_IDLE_LOOKS = 4
#: how long the watch waits for one write before it goes on without its result
_WRITE_SECONDS = 5.0


class SettledByWatch(EventLeaseLost):
    """The delivery took too long, and the watch has settled its batch."""


class DeliveryInterrupted(BaseException):
    """Raised in a thread whose delivery was given up, as soon as it runs Python code again."""


@dataclass(eq=False, slots=True)
class Sending:
    """One call of a destination. Its time does not grow while this process is suspended."""

    batch: Batch
    events: Sequence[Event]
    connection: BaseDatabaseWrapper
    timer: StatementTimer = field(init=False)  # ends its transaction from another thread
    thread: int = field(default_factory=threading.get_ident)
    seconds: float = 0.0
    looked_at: float = field(default_factory=time.monotonic)
    #: the delivery's own transaction locks the rows of its events: nobody else can claim or write them
    in_transaction: bool = False
    alone: bool = False  # the rest of the batch was released
    given_up: bool = False  # the watch has settled its events: the result of the call is ignored
    warned: int = 0  # whole leases after which a warning was logged

    def __post_init__(self) -> None:
        self.timer = StatementTimer(self.connection)

    @property
    def ids(self) -> set[int]:
        """The ids of its events that are neither delivered nor failed yet."""
        return {event.id for event in self.events} & set(self.batch.left)

    @contextmanager
    def locking(self) -> Iterator[None]:
        """A block in which the delivery's transaction locks the rows of its events."""
        self.in_transaction = True
        # A new one each time: the transaction may be retried.
        self.timer = StatementTimer(self.connection)
        try:
            with self.timer:
                yield
        finally:
            self.in_transaction = False


def interrupt(thread: int) -> None:
    """Raise DeliveryInterrupted in a thread when it next runs Python code, not while it waits in C."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(DeliveryInterrupted))


class DeliveryWatch:
    """Watches the deliveries of one relay, in a thread that runs while there are some."""

    def __init__(
        self,
        using: str,
        settings: OutboxSettings,
        log: DeliveryLog,
        *,
        on_overdue: Callable[[int], None],
        on_look: Callable[[bool], None],
    ) -> None:
        self._using, self._log, self._on_overdue, self._on_look = using, log, on_overdue, on_look
        self.lease_seconds, self._delivery_seconds = settings.lease_seconds, settings.delivery_seconds
        self._tick_seconds = min(
            _TICK_SECONDS, (self._delivery_seconds or self.lease_seconds) / 10, self.lease_seconds / 10
        )
        self._lock = threading.Lock()
        self._sending: Sending | None = None
        self._watching = False
        self._writer = SideWriter()

    @contextmanager
    def over(self, batch: Batch, events: Sequence[Event]) -> Iterator[Sending]:
        """A block that delivers `events`. Raises SettledByWatch at its end if the watch gave the delivery up."""
        sending = Sending(batch, events, connections[self._using])
        with self._lock:
            self._sending = sending
            if not self._watching:
                self._on_look(True)
                self._watching = start_thread(self._run) is not None
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
                raise SettledByWatch

    def release(self) -> None:
        """Release the events of the delivery under way and the rest of its batch, because the process ends now."""
        with self._lock:
            sending, self._sending = self._sending, None
            if sending is None:
                return
            sending.given_up = True
            delivered, others = _rest(sending)
            others |= sending.ids
        topics = ", ".join(sorted({repr(event.topic) for event in sending.events}))
        logger.warning("stopping during a delivery of %s; its event is released and no attempt is counted", topics)
        self._free_rows(sending)
        self._writer.write(partial(self._release, sending.batch, delivered, others))

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
                # The thread must not end: no other one watches.
                logger.exception("could not check a delivery under way")

    def _look(self, sending: Sending) -> None:
        now = time.monotonic()
        # Bounded: after a suspension of the process its delivery must not be overdue at once.
        sending.seconds += min(now - sending.looked_at, 2 * self._tick_seconds)
        sending.looked_at = now
        if self._delivery_seconds is not None and sending.seconds >= self._delivery_seconds:
            self._give_up(sending)
            return
        if sending.seconds >= min(SLOW_SECONDS, self.lease_seconds / 3):
            self._release_rest(sending)
        if now >= sending.batch.until - self.lease_seconds * 2 / 3 and not sending.in_transaction:
            self._writer.write(partial(self._renew, sending), wait_seconds=0)
        if sending.seconds >= self.lease_seconds * (sending.warned + 1):
            sending.warned = int(sending.seconds / self.lease_seconds)
            self._warn(sending)

    def _warn(self, sending: Sending) -> None:
        limit = self._delivery_seconds
        then = "waits without limit" if limit is None else f"gives it up after {limit:g} s"
        for event in sending.events:
            logger.warning(
                "event %d (%r), attempt %d: its delivery has been under way for %.0f s; the relay renews its lease and "
                "%s (OUTBOX['DELIVERY_SECONDS']). Its stack:\n%s",
                event.id, event.topic, event.attempt, sending.seconds, then, _stack(sending.thread),
            )  # fmt: skip

    def _release_rest(self, sending: Sending) -> None:
        """Release the rest of the batch, so that it does not wait for a slow delivery."""
        with self._lock:
            if self._sending is not sending or sending.alone or self._writer.is_busy:
                return
            sending.alone = True
            rest = _rest(sending)
        self._writer.write(partial(self._release, sending.batch, *rest), wait_seconds=0)

    def _release(self, batch: Batch, delivered: Collection[int], others: Collection[int]) -> None:
        statements.mark_processed(delivered, batch.token, using=self._using)
        statements.release(others, batch.token, using=self._using)

    def _renew(self, sending: Sending) -> None:
        begun = time.monotonic()
        ids = sending.ids
        if statements.renew(ids, sending.batch.token, lease_seconds=self.lease_seconds, using=self._using):
            sending.batch.until = max(sending.batch.until, begun + self.lease_seconds)

    def _give_up(self, sending: Sending) -> None:
        """Charge the events of the call, release the others, and have the relay replaced."""
        with self._lock:
            if self._sending is not sending:
                return
            self._sending, sending.given_up = None, True
            ids, rest = sending.ids, _rest(sending)
        stack = _stack(sending.thread)
        self._free_rows(sending)
        self._writer.write(partial(self._charge, sending, ids, stack))
        self._writer.write(partial(self._release, sending.batch, *rest))
        self._on_overdue(sending.thread)

    def _charge(self, sending: Sending, ids: Collection[int], stack: str) -> None:
        problem = (
            f"the delivery took longer than OUTBOX['DELIVERY_SECONDS'] ({self._delivery_seconds:g} s) and was given "
            f"up. Its stack:\n{stack}"
        )
        for event in sending.events:
            if event.id in ids:
                with suppress(EventLeaseLost):
                    delay = statements.fail(event, sending.batch.token, problem, using=self._using)
                    self._log.failed(event, problem, delay, logging.ERROR)

    def _free_rows(self, sending: Sending) -> None:
        if sending.in_transaction:
            sending.timer.end_session()


def _rest(sending: Sending) -> tuple[list[int], set[int]]:
    """The ids that were delivered and not marked yet, and those that were not sent; no more of them may be sent."""
    batch = sending.batch
    delivered, batch.unmarked = batch.unmarked, []
    # The end of the batch marks them again, in case the watch could not.
    batch.handed += delivered
    return delivered, set(batch.left) - {event.id for event in sending.events}


def _stack(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)[-12:]) if frame else "(ended)"


class SideWriter:
    """Runs one write at a time in a thread with a connection of its own, which a database that hangs blocks alone."""

    def __init__(self) -> None:
        self._writing: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def write(self, work: Callable[[], None], wait_seconds: float = _WRITE_SECONDS) -> None:
        """Run `work` and wait up to `wait_seconds` for it; do nothing if an earlier write lasts longer than that."""
        if self._writing is not None:
            self._writing.join(wait_seconds)
            if self.is_busy:
                return
        self._writing = start_thread(lambda: _run(work))
        if wait_seconds and self._writing is not None:
            self._writing.join(wait_seconds)


def _run(work: Callable[[], None]) -> None:
    try:
        work()
    except (Error, DatabaseBusy) as error:
        # What was not written ends with the lease.
        logger.warning("the lease of a delivery under way could not be written: %s", error)
    except Exception:
        logger.exception("the lease of a delivery under way could not be written")
    finally:
        connections.close_all()


def start_thread(target: Callable[[], None]) -> threading.Thread | None:
    """Start a daemon thread; None where the process has no room for one."""
    try:
        thread = threading.Thread(target=target, name="jobqueue-relay-watch", daemon=True)
        thread.start()
    except RuntimeError as error:
        logger.warning("cannot start the thread that renews the leases of deliveries: %s", error)
        return None
    return thread
