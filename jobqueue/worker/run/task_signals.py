"""Send Django Tasks' signals: task_started before each run of a task, task_finished when its outcome is written.

task_started is sent where the task runs; task_finished by the dispatcher, so that no receiver delays the writing of
outcomes. Both run in the contextvars of the run: a receiver can reset at the end what it has set at the start.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from contextvars import Context, ContextVar
from datetime import timedelta
from functools import partial

from django.conf import settings
from django.dispatch import Signal
from django.utils.log import RequireDebugFalse, RequireDebugTrue

from jobqueue.base.compat import AnyTask, TaskError, TaskResultStatus, only_logs, signals
from jobqueue.base.payload import decode
from jobqueue.exceptions import SoftTimeout
from jobqueue.failures import describe, dotted_path, project_trace, summary
from jobqueue.log_format import WithoutLogger, one_line
from jobqueue.masking import mask_text
from jobqueue.requested import REQUESTED_ENDS
from jobqueue.signals import RunOutcome
from jobqueue.tasks.results import JobTaskResult, backend_of, started_result
from jobqueue.transitions import Lease
from jobqueue.worker.run.attempt import Outcome
from jobqueue.worker.shared.cleanup import drop_open_transactions
from jobqueue.worker.shared.signal_dispatcher import SignalDispatcher

logger = logging.getLogger("jobqueue.worker")

#: the level of Django's own log line, and the status of the result
_ENDS = {
    RunOutcome.OK: (logging.INFO, TaskResultStatus.SUCCESSFUL),
    RunOutcome.RETRY: (logging.INFO, TaskResultStatus.READY),
    RunOutcome.DEAD: (logging.ERROR, TaskResultStatus.FAILED),
    RunOutcome.CANCELED: (logging.INFO, TaskResultStatus.FAILED),
    **{
        end.outcome: (logging.INFO, TaskResultStatus.READY if end.again else TaskResultStatus.FAILED)
        for end in REQUESTED_ENDS
    },
}
# Through the base class: a subclass may have a property of this name, which raises.
_TRACEBACK = BaseException.__dict__["__traceback__"]
_dispatcher: SignalDispatcher | None = None
#: the error whose task_finished is being sent, and the level of its line
_telling: ContextVar[tuple[BaseException, int] | None] = ContextVar("jobqueue_telling", default=None)


def _mask_line(record: logging.LogRecord) -> bool:
    """A filter of Django's logger: handlers such as mail_admins get the line with its level, and the error masked."""
    told = _telling.get()
    if told is None or not record.exc_info:
        return True
    error, level = told
    record.exc_info = None
    record.levelno, record.levelname = level, logging.getLevelName(level)
    if level >= logging.ERROR:
        record.exc_text = mask_text(project_trace(error))
    # Handlers that print no exc_text, such as that of mails, have the error in the line.
    record.msg, record.args = "%s  %s", (record.getMessage(), one_line(mask_text(summary(error))))
    return signals.logger.isEnabledFor(level)


signals.logger.addFilter(_mask_line)


def dispatch_via(dispatcher: SignalDispatcher) -> None:
    """Let `dispatcher` send task_finished in this process."""
    global _dispatcher
    _dispatcher = dispatcher


def dispatch(delivery: Callable[[], object]) -> None:
    """Have the dispatcher call `delivery`; call it at once if there is no dispatcher yet."""
    if _dispatcher is None:
        delivery()
    else:
        _dispatcher.dispatch(delivery)


def started(task: AnyTask | None, lease: Lease, *, within: bool = False) -> None:
    """Send task_started in the job's thread. Raises SoftTimeout if the soft limit ends meanwhile, and nothing else.

    Transactions that receivers left open are rolled back, unless the job itself runs `within` one.
    """
    if task is None or not _listened(signals.task_started, signals.log_task_started, logging.INFO):
        return
    try:
        backend = backend_of(task)
        answers = signals.task_started.send_robust(type(backend), task_result=started_result(task, lease, backend))
    except SoftTimeout:
        raise
    except BaseException:
        logger.exception("task_started of job %d could not be sent; the job continues", lease.job_id)
    else:
        _raise_soft_timeout(answers)
    finally:
        if not within:
            drop_open_transactions()


async def astarted(task: AnyTask | None, lease: Lease) -> None:
    """Do the same on an event loop; receivers that are not coroutine functions run in another thread."""
    if task is None or not _listened(signals.task_started, signals.log_task_started, logging.INFO):
        return
    try:
        backend = backend_of(task)
        result = started_result(task, lease, backend)
        _raise_soft_timeout(await signals.task_started.asend_robust(type(backend), task_result=result))
    except CancelledError:
        raise
    except BaseException:
        logger.exception("task_started of job %d could not be sent; the job continues", lease.job_id)


def finished(outcome: Outcome, what: RunOutcome) -> None:
    """Have task_finished sent for a run whose outcome is written, unless `what` is PARKED or LOST."""
    if outcome.task is None or what not in _ENDS:
        return
    level, status = _ENDS[what]
    if not _listened(signals.task_finished, signals.log_task_finished, level):
        return
    dispatch(partial(_finish, outcome, level, status))


def keep_up() -> None:
    """Wait while receivers are far behind, so that the number of waiting signals is bounded."""
    if _dispatcher is not None:
        _dispatcher.keep_up()


def _finish(outcome: Outcome, level: int, status: TaskResultStatus) -> None:
    try:
        (outcome.context or Context()).run(_send_finished, outcome, level, status)
    except BaseException as problem:
        # As text: a handler of the log would ask the error of the job, whose attributes may raise.
        words = "task_finished of job %d could not be sent; the job has ended\n%s"
        logger.error(words, outcome.lease.job_id, describe(problem))


def _send_finished(outcome: Outcome, level: int, status: TaskResultStatus) -> None:
    assert outcome.task is not None
    backend = backend_of(outcome.task)
    result = _finished(started_result(outcome.task, outcome.lease, backend), outcome, status)
    send = partial(signals.task_finished.send_robust, type(backend), task_result=result)
    if outcome.error is None:
        _raise_soft_timeout(send())
        return
    trace = _TRACEBACK.__get__(outcome.error)
    told = _telling.set((outcome.error, level))
    try:
        # Receivers find the traceback in sys.exc_info().
        raise outcome.error
    except BaseException:
        _TRACEBACK.__set__(outcome.error, trace)
        _raise_soft_timeout(send())
    finally:
        _telling.reset(told)


def _finished(result: JobTaskResult, outcome: Outcome, status: TaskResultStatus) -> JobTaskResult:
    lease, error = outcome.lease, outcome.error
    object.__setattr__(result, "status", status)
    if status != TaskResultStatus.READY:
        object.__setattr__(result, "finished_at", lease.locked_at + timedelta(seconds=outcome.run_seconds))
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", None if outcome.result is None else decode(outcome.result))
    elif error is not None and (outcome.requested is None or not outcome.requested.end.again):
        result.errors.append(TaskError(exception_class_path=dotted_path(type(error)), traceback=describe(error)))
    return result


def _listened(signal: Signal, log: object, level: int) -> bool:
    """Whether a signal has an effect: Django's own receiver only logs a line, which may be disabled."""
    if only_logs(signal, log):
        return bool(signals.logger.isEnabledFor(level)) and _written(level)
    return bool(signal.receivers)


def _written(level: int) -> bool:
    """Whether a handler accepts lines of Django's logger: by default there is only a console that requires DEBUG."""
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
    if isinstance(condition, WithoutLogger):
        return condition.name == signals.logger.name
    required = RequireDebugTrue if settings.DEBUG else RequireDebugFalse
    return type(condition) in (RequireDebugTrue, RequireDebugFalse) and type(condition) is not required


def _raise_soft_timeout(answers: Iterable[tuple[object, object]]) -> None:
    """Raise a SoftTimeout that interrupted a receiver. Django logs the other errors."""
    for _, answer in answers:
        if isinstance(answer, SoftTimeout):
            raise answer
