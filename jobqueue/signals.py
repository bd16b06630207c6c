"""Signals about jobs. They are sent after the write and carry ids, not rows; the sender is the Job or Worker model.

Receivers are called with send_robust(), which logs what they raise, so that it does not reach the worker. A signal
about a write is sent by jobqueue.db.callers_transaction.send_after_commit(): inside a caller's transaction it waits for
the commit, and after a rollback it is not sent. lease_lost and transaction_retried, which report what was refused, are
sent at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from django.dispatch import Signal

job_enqueued = Signal()  # job_id, queue, task, using
job_done = Signal()  # job_id, queue, task, attempt, worker, using
job_failed = Signal()  # job_id, queue, task, attempt, worker, cause, delay_seconds, using: it will be retried
job_dead = Signal()  # job_id, queue, task, attempt, worker, cause, using: FAILED, no attempt left
job_canceled = Signal()  # job_id, queue, task, using
job_parked = Signal()  # job_id, queue, task, reason, using: READY again without using an attempt
job_snoozed = Signal()  # job_id, queue, task, attempt, worker, delay_seconds, using: the job raised Snooze
job_reaped = Signal()  # job_id, queue, task, attempt, worker, using: its lease expired
lease_lost = Signal()  # job_id, queue, task, attempt, worker, verb, using: a former holder was refused
# After a deadlock, a lock wait or a lost connection; the transaction is run again.
transaction_retried = Signal()  # using, code, attempt, error
# One run in a worker has ended and is settled; `outcome` is a RunOutcome. delay_seconds: until it runs again, if known.
# outcome, job_id, queue, name, attempt, max_attempts, wait_seconds, run_seconds, error, delay_seconds
attempt_ended = Signal()
# An operator paused a queue, or a task in it; mode: "paused" or "draining". queue, task, mode, reason, by, until, using
queue_paused = Signal()
queue_resumed = Signal()  # queue, task, by, using
breaker_changed = Signal()  # dependency, state ("closed", "open" or "half-open"), reason, using
# Ticks of a schedule were not fired, the first one at `tick`; reason: "late" (no worker looked in time), "overlap",
# "full", "refused" or "duplicate". name, tick, ticks, reason, using
schedule_missed = Signal()
# A group has ended. group_id, name, total, done, failed, canceled, using
group_ended = Signal()
# An alarm of JOBQUEUE["ALARMS"] began or ended. alarm (jobqueue.alarms.Alarm), using
alarm_changed = Signal()
worker_started = Signal()  # name, using
worker_stopped = Signal()  # name, reason, using


Dispatch: TypeAlias = Callable[[Callable[[], object]], None]


class _Delivery(threading.local):
    dispatch: Dispatch | None = None
    kept: list[Callable[[], object]] | None = None  # in a block of held_back()


_delivery = _Delivery()


class RunOutcome(StrEnum):
    """How one run in a worker ended, once that is written."""

    OK = "ok"
    RETRY = "retry"  # it failed and will run again
    DEAD = "dead"  # it failed and no attempt is left
    CANCELED = "canceled"
    SNOOZED = "snoozed"  # the job asked to run later, without using an attempt
    DISCARDED = "discarded"  # the job asked to be canceled
    PARKED = "parked"  # READY again without using an attempt
    LOST = "lost"  # its lease ended during the run


def send(signal: Signal, sender: type, **values: object) -> None:
    """Send to every receiver now; send_robust() logs what a receiver raises to the logger django.dispatch."""
    if signal.receivers:
        call_or_keep(partial(_deliver, partial(signal.send_robust, sender, **values)))


def _deliver(delivery: Callable[[], object]) -> None:
    if _delivery.dispatch is None:
        delivery()
    else:
        _delivery.dispatch(delivery)


def dispatch_via(dispatch: Dispatch | None) -> None:
    """Let this thread hand its deliveries to `dispatch`, which calls each, in order, later; None calls receivers here.

    For threads that must not wait for a receiver. Threads of jobs call receivers directly: there a signal is part of
    what the job does.
    """
    _delivery.dispatch = dispatch


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Keep the signals that this thread sends in the block. Call the function that it yields after the commit."""
    kept: list[Callable[[], object]] = []
    before, _delivery.kept = _delivery.kept, kept

    def deliver() -> None:
        for sending in kept:
            call_or_keep(sending)

    try:
        yield deliver
    finally:
        _delivery.kept = before


def call_or_keep(sending: Callable[[], object]) -> None:
    """Call `sending`, which sends a signal; in a block of held_back() it is kept for the end of that."""
    if _delivery.kept is None:
        sending()
    else:
        _delivery.kept.append(sending)
