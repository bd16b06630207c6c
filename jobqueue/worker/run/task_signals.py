"""Django Tasks' signals around each run of a task: task_started before it, task_finished when its end is written.

task_started is sent where the task runs; task_finished by the dispatcher, so that no receiver keeps ends from being
written. Both in the run's own contextvars: what a receiver sets at the start it finds, and can reset, at the end.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from contextvars import Context
from datetime import timedelta
from functools import partial

from django.conf import settings
from django.dispatch import Signal
from django.utils.log import RequireDebugFalse, RequireDebugTrue

from jobqueue.compat import Task, TaskError, TaskResultStatus, signals
from jobqueue.exceptions import SoftTimeout
from jobqueue.failures import describe, dotted_path
from jobqueue.payload import decode
from jobqueue.signals import RunOutcome
from jobqueue.tasks.results import JobTaskResult, backend_of, started_result
from jobqueue.transitions import Lease
from jobqueue.worker.run.attempt import Outcome
from jobqueue.worker.shared.cleanup import drop_open_transactions
from jobqueue.worker.shared.signal_dispatcher import SignalDispatcher

logger = logging.getLogger("jobqueue.worker")

#: how loud Django's own log line is, and the status
_ENDS = {
    RunOutcome.OK: (logging.INFO, TaskResultStatus.SUCCESSFUL),
    RunOutcome.RETRY: (logging.INFO, TaskResultStatus.READY),
    RunOutcome.DEAD: (logging.ERROR, TaskResultStatus.FAILED),
    RunOutcome.CANCELED: (logging.ERROR, TaskResultStatus.FAILED),
}
_dispatcher: SignalDispatcher | None = None


def dispatch_via(dispatcher: SignalDispatcher) -> None:
    """From now on this process has task_finished sent by `dispatcher`."""
    global _dispatcher
    _dispatcher = dispatcher


def dispatch(delivery: Callable[[], object]) -> None:
    """Have `delivery` called by the dispatcher; at once where there is none yet."""
    if _dispatcher is None:
        delivery()
    else:
        _dispatcher.dispatch(delivery)


def started(task: Task[..., object] | None, lease: Lease, *, within: bool = False) -> None:
    """Send task_started, in the job's thread. A soft limit that ends meanwhile is raised; nothing else is.

    Transactions that receivers left open are dropped, unless the job itself runs `within` one.
    """
    if task is None or not _listened(signals.task_started, signals.log_task_started, logging.INFO):
        return
    try:
        backend = backend_of(task)
        answers = signals.task_started.send_robust(type(backend), task_result=started_result(task, lease, backend))
    except SoftTimeout:
        raise
    except BaseException:
        logger.exception("task_started of job %d could not be sent; the job goes on", lease.job_id)
    else:
        _raise_soft_timeout(answers)
    finally:
        if not within:
            drop_open_transactions()


async def astarted(task: Task[..., object] | None, lease: Lease) -> None:
    """started() on an event loop: receivers that are no coroutine functions run in another thread."""
    if task is None or not _listened(signals.task_started, signals.log_task_started, logging.INFO):
        return
    try:
        backend = backend_of(task)
        result = started_result(task, lease, backend)
        _raise_soft_timeout(await signals.task_started.asend_robust(type(backend), task_result=result))
    except CancelledError:
        raise
    except BaseException:
        logger.exception("task_started of job %d could not be sent; the job goes on", lease.job_id)


def finished(outcome: Outcome, what: RunOutcome) -> None:
    """Have task_finished sent for a run whose end is written: `what` is ok, retry, dead or canceled."""
    if outcome.task is None or what not in _ENDS:
        return
    level, status = _ENDS[what]
    if not _listened(signals.task_finished, signals.log_task_finished, level):
        return
    dispatch(partial(_finish, outcome, status))


def keep_up() -> None:
    """Wait while receivers are far behind: they set the pace then, and what waits for them stays bounded."""
    if _dispatcher is not None:
        _dispatcher.keep_up()


def _finish(outcome: Outcome, status: TaskResultStatus) -> None:
    try:
        (outcome.context or Context()).run(_send_finished, outcome, status)
    except BaseException:
        logger.exception("task_finished of job %d could not be sent; the job has ended", outcome.lease.job_id)


def _send_finished(outcome: Outcome, status: TaskResultStatus) -> None:
    backend = backend_of(outcome.task)
    result = _finished_result(outcome, status, backend)
    send = partial(signals.task_finished.send_robust, type(backend), task_result=result)
    if outcome.error is None:
        _raise_soft_timeout(send())
        return
    trace = outcome.error.__traceback__
    try:
        # Receivers find the traceback in sys.exc_info().
        raise outcome.error
    except BaseException:
        outcome.error.__traceback__ = trace
        _raise_soft_timeout(send())


def _finished_result(outcome: Outcome, status: TaskResultStatus, backend: object) -> JobTaskResult:
    lease, error = outcome.lease, outcome.error
    result = started_result(outcome.task, lease, backend)
    object.__setattr__(result, "status", status)
    if status != TaskResultStatus.READY:
        object.__setattr__(result, "finished_at", lease.locked_at + timedelta(seconds=outcome.run_seconds))
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", None if outcome.result is None else decode(outcome.result))
    elif error is not None:
        result.errors.append(TaskError(exception_class_path=dotted_path(type(error)), traceback=describe(error)))
    return result


def _listened(signal: Signal, log: object, level: int) -> bool:
    """Whether anybody would notice: Django's own receivers only write a line to a log."""
    receivers = signal.receivers
    if len(receivers) == 1 and receivers[0][0][0] == id(log):
        return bool(signals.logger.isEnabledFor(level)) and _written(level)
    return bool(receivers)


def _written(level: int) -> bool:
    """Whether a handler takes lines of Django's logger: by default they end at a console that is for DEBUG only."""
    logger: logging.Logger | None = signals.logger
    found = False
    while logger is not None:
        for handler in logger.handlers:
            found = True
            if level >= handler.level and not any(map(_is_shut, handler.filters)):
                return True
        logger = logger.parent if logger.propagate else None
    return not found and logging.lastResort is not None and level >= logging.lastResort.level


def _is_shut(condition: object) -> bool:
    required = RequireDebugTrue if settings.DEBUG else RequireDebugFalse
    return type(condition) in (RequireDebugTrue, RequireDebugFalse) and type(condition) is not required


def _raise_soft_timeout(answers: Iterable[tuple[object, object]]) -> None:
    """Raise a SoftTimeout that a receiver met. Django logs the other errors."""
    for _, answer in answers:
        if isinstance(answer, SoftTimeout):
            raise answer
