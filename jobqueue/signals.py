"""Signals about jobs: sent after the write, with ids, never rows. Sender is the Job or Worker model class.

Receivers are called with send_robust: what they raise is logged and does not reach the worker.
Inside a caller's transaction a signal is sent before that transaction commits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from django.dispatch import Signal

logger = logging.getLogger("jobqueue")

job_enqueued = Signal()  # job_id, queue, task, using
job_done = Signal()  # job_id, queue, task, attempt, worker, using
job_failed = Signal()  # job_id, queue, task, attempt, worker, cause, delay_seconds, using: it will be retried
job_dead = Signal()  # job_id, queue, task, attempt, worker, cause, using: FAILED, no attempt left
job_canceled = Signal()  # job_id, queue, task, using
job_parked = Signal()  # job_id, queue, task, reason, using: READY again without using an attempt
job_reaped = Signal()  # job_id, queue, task, attempt, worker, using: its lease ran out
lease_lost = Signal()  # job_id, queue, task, attempt, worker, verb, using: a former holder was refused
# Deadlock, lock wait or lost connection; the transaction is redone.
transaction_retried = Signal()  # using, code, attempt, error
# One run in a worker came to its end and is settled: ok, retry, dead, canceled, parked, lost.
attempt_ended = Signal()  # outcome, job_id, queue, name, attempt, max_attempts, wait_seconds, run_seconds, error
worker_started = Signal()  # name, using
worker_stopped = Signal()  # name, reason, using


def send(signal: Signal, sender: type, **values: Any) -> None:
    """Send to every receiver; what a receiver raises is logged here and goes no further."""
    if not signal.receivers:
        return
    if _here.dispatch is None:
        _deliver(signal, sender, values)
    else:
        _here.dispatch(partial(_deliver, signal, sender, values))


Dispatch: TypeAlias = Callable[[Callable[[], None]], None]


class _Here(threading.local):
    dispatch: Dispatch | None = None


_here = _Here()


def dispatch_via(dispatch: Dispatch | None) -> None:
    """From now on this thread hands deliveries to `dispatch`, which calls each, in order, in its own time.

    For threads that must not wait for a receiver; None = it calls receivers itself again. In the threads of jobs they
    are called at once: there a signal is a part of what the job does.
    """
    _here.dispatch = dispatch


def _deliver(signal: Signal, sender: type, values: dict[str, Any]) -> None:
    for receiver, answer in signal.send_robust(sender, **values):
        if isinstance(answer, Exception):
            # The project's own handlers may raise too, where a job has closed their stream.
            with suppress(Exception):
                logger.error("receiver %r failed; the job goes on", receiver, exc_info=answer)
