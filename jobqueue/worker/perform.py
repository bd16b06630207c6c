"""Run one lease: find the function, call it, say how it ended. Nothing of ours is open meanwhile."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from asgiref.sync import async_to_sync
from django.db import close_old_connections, connections

from jobqueue import registry
from jobqueue.context import JobContext, running
from jobqueue.exceptions import JobCanceled, PayloadError, ResultError, UnknownTask
from jobqueue.transitions import Lease
from jobqueue.transitions.settling import encode_result
from jobqueue.worker.timeouts import Watch, limited_coroutine, limits_of


class Ending(StrEnum):
    """How a run ended, before it is written down."""

    OK = "ok"
    FAILED = "failed"
    CANCELED = "canceled"
    PARKED = "parked"
    FINISHED = "finished"  # by context.finish(): written already


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run's end: what to write, and how long it took."""

    lease: Lease
    ending: Ending
    run_seconds: float
    result: Any = None
    error: BaseException | None = None
    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Where a lease runs: its entry on the board, its thread's watch, and whether it is to stop."""

    entry: Any
    watch: Watch
    asked_to_stop: Callable[[], bool]


def perform(lease: Lease, run: Run) -> Outcome:
    """Run the task or handler of `lease`; whatever it raises becomes the outcome."""
    begun = time.monotonic()
    context = JobContext(lease, run.asked_to_stop)
    task: Any = None
    result: Any = None
    error: BaseException | None = None
    try:
        task, call = _find(lease)
        with running(context), run.watch.limited(limits_of(task), run.entry):
            value = call(context)
        result = None if context.finished else encode_result(value)
        ending = Ending.FINISHED if context.finished else Ending.OK
    except UnknownTask as problem:
        ending, error = Ending.PARKED, problem
    except JobCanceled as problem:
        ending, error = Ending.CANCELED, problem
    except BaseException as problem:
        # SystemExit and KeyboardInterrupt included: a job may end itself, never its worker.
        # After finish() its effect and DONE are committed; what came then can only be reported.
        ending, error = (Ending.FINISHED if context.finished else Ending.FAILED), problem
    finally:
        _clean_connections()
    return Outcome(lease, ending, time.monotonic() - begun, result, error, _delay(task, lease, error))


def _find(lease: Lease) -> tuple[Any, Callable[[JobContext], Any]]:
    if lease.task is None:
        handler = registry.find_handler(lease.queue)
        if handler is None:
            raise UnknownTask(f"no @handler for queue {lease.queue!r} in this worker")
        payload = _readable(lease.payload)
        return None, lambda context: _call(handler.func, [payload], {}, limits_of(None).soft_seconds)
    task = registry.find_task(lease.task)
    if task is None:
        raise UnknownTask(f"task {lease.task!r} is not known to this worker")
    args, kwargs = _arguments(_readable(lease.payload))
    soft = limits_of(task).soft_seconds
    if task.takes_context:
        return task, lambda context: _call(task.func, [_task_context(task, lease, context), *args], kwargs, soft)
    return task, lambda context: _call(task.func, args, kwargs, soft)


def _call(func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], soft_seconds: float | None) -> Any:
    if inspect.iscoroutinefunction(func):
        return async_to_sync(limited_coroutine)(func, args, kwargs, soft_seconds)
    return func(*args, **kwargs)


def _readable(payload: Any) -> Any:
    if isinstance(payload, PayloadError):
        raise payload
    return payload


def _arguments(payload: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(payload, dict) and not set(payload) - {"args", "kwargs"}:
        args, kwargs = payload.get("args", []), payload.get("kwargs", {})
        if isinstance(args, list) and isinstance(kwargs, dict):
            return args, kwargs
    raise PayloadError('the payload of a task must be {"args": [...], "kwargs": {...}}; correct it and retry the job')


def _task_context(task: Any, lease: Lease, context: JobContext) -> Any:
    from jobqueue.task_context import task_context

    return task_context(task, lease, context)


def _delay(task: Any, lease: Lease, error: BaseException | None) -> float | None:
    backoff = getattr(task, "backoff", None)
    if error is None or backoff is None or isinstance(error, ResultError):
        return None
    return float(backoff.delay_seconds(lease.attempt))


def _clean_connections() -> None:
    """The next job gets no open transaction and no broken or expired connection from this one."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block or (connection.connection is not None and not connection.get_autocommit()):
            alias = connection.alias
            try:
                if connection.connection is not None:
                    connection.connection.close()
            except Exception:
                pass
            del connections[alias]
    close_old_connections()
