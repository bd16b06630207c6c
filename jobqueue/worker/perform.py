"""Run one lease: find the function, call it, say how it ended. Nothing of ours is open meanwhile."""

from __future__ import annotations

import logging
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from contextvars import Context
from dataclasses import dataclass
from enum import StrEnum
from inspect import isawaitable
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.db import connections

from jobqueue import registry
from jobqueue.backoff import wait_seconds
from jobqueue.conf import load
from jobqueue.context import JobContext, running
from jobqueue.db.cutting import watched
from jobqueue.exceptions import JobCanceled, LockNotAcquired, PayloadError, ResultError, UnknownTask
from jobqueue.failures import describe, is_permanent, summary
from jobqueue.job_options import may_retry, options_of
from jobqueue.transitions import Lease
from jobqueue.transitions.acking import encode_result
from jobqueue.upcasting import arguments
from jobqueue.worker import subtasks, task_signals
from jobqueue.worker.board import Hold
from jobqueue.worker.cleaning import clean_connections, drop_open_transactions
from jobqueue.worker.timeouts import Watch, hard_limited, limited, limits_of

logger = logging.getLogger("jobqueue.worker")


class Ending(StrEnum):
    """How a run ended, before it is written down."""

    OK = "ok"
    FAILED = "failed"
    CANCELED = "canceled"
    PARKED = "parked"
    FINISHED = "finished"  # by context.finish(), or a batch handler's own ack: written already


@dataclass(slots=True, eq=False)  # frozen takes three times as long to make, for every job
class Outcome:
    """One run's end: what to write, and how long it took."""

    lease: Lease
    ending: Ending
    run_seconds: float
    result: Any = None
    error: BaseException | None = None
    delay_seconds: float | None = None
    ack_each: bool = False
    coroutine: bool = False  # it ran on the event loop, not in a job thread
    task: Any = None  # None for a handler
    context: Context | None = None  # the contextvars in which it ran
    retry: bool = True  # False: what was raised is not worth another attempt
    log: str | None = None  # of a failed run: what it has logged
    finishing: bool = False  # finish() came to its commit, and nobody knows yet whether that happened
    finish_result: Any = None  # what was to be stored with it
    row_locked: bool = False  # it could not be written because somebody has locked the job's row
    cut_off: bool = False  # it could not be written because the connection was lost

    @property
    def key(self) -> tuple[int, int]:
        """Which run this is the end of: a job may have had another one in the same process."""
        return self.lease.job_id, self.lease.fence

    @property
    def sent_chars(self) -> int:
        """The approximate length of the result, or of the error and the log, that settling sends to the database."""
        if self.ending is Ending.OK:
            return len(self.result or "")
        if self.ending is not Ending.FAILED or self.error is None:
            return 0
        return len(describe(self.error)) + len(self.log or "")

    def was_finished(self) -> None:
        """It turned out that the commit of its finish() has happened."""
        self.ending, self.result, self.finishing = Ending.FINISHED, self.finish_result, False

    def note_on(self, entry: Any) -> None:
        """Say on the board how the body ended: it has not killed its process, and need not run again to tell."""
        if self.ending is Ending.OK:
            entry.keep_result(self.result)
        elif self.ending is Ending.FAILED and self.error is not None:
            final = not self.retry or is_permanent(self.error)
            entry.keep_failure(summary(self.error), delay_seconds=self.delay_seconds, final=final)
        else:
            entry.hold = Hold.OVER


@dataclass(slots=True, eq=False)
class Run:
    """Where a lease runs: its entry on the board, its thread's watch, and whether it is to stop."""

    entry: Any
    watch: Watch
    asked_to_stop: Callable[[], bool]
    context: Context | None = None  # the contextvars in which perform() is called


class Attempt:
    """A run while it goes on: whatever is raised in its `with` block becomes its end."""

    def __init__(self, lease: Lease, asked_to_stop: Callable[[], bool]) -> None:
        self.begun = time.monotonic()
        self.lease, self.context = lease, JobContext(lease, asked_to_stop)
        self.task: Any = None
        self.options: Any = None  # how to run it: the task, or what the job has of its own
        self.result: Any = None
        self.error: BaseException | None = None
        self.shared = False  # the error ended the call of several jobs, and does not tell which one it is about

    def find(self) -> Callable[[JobContext], Any]:
        """What to call."""
        self.task, call = _find(self.lease)
        self.options = options_of(self.task, self.lease.options)
        return call

    async def body(self, call: Callable[[JobContext], Any]) -> Any:
        """What a coroutine job does."""
        await task_signals.astarted(self.task, self.lease)
        return await call(self.context)

    def returned(self, value: Any) -> None:
        """The body has come back with `value`."""
        if not self.context.finished:
            self.result = encode_result(value)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        # SystemExit and KeyboardInterrupt included: a job may end itself, never its worker.
        self.error = error
        return True

    def tell_progress(self) -> None:
        """Write the last progress; nothing that goes wrong with it changes how the run ended."""
        try:
            # Its time limits have ended with the body.
            with watched(connections[self.lease.using]):
                self.context.tell_progress()
        except Exception:
            logger.exception("the last progress of job %d could not be written", self.lease.job_id)

    def ending(self) -> Ending:
        """How it ended, by what was raised."""
        # After finish() its effect and DONE are committed; what came then can only be reported.
        if self.context.finished:
            return Ending.FINISHED
        if isinstance(self.error, UnknownTask | LockNotAcquired) and not self.shared:
            return Ending.PARKED
        if isinstance(self.error, JobCanceled) and not self.shared:
            return Ending.CANCELED
        return Ending.OK if self.error is None else Ending.FAILED

    def outcome(self, context: Context | None, *, coroutine: bool) -> Outcome:
        """What the settler writes."""
        return Outcome(
            self.lease,
            self.ending(),
            time.monotonic() - self.begun,
            self.context.result if self.context.finished else self.result,
            self.error,
            _delay(self.options, self.lease, self.error),
            ack_each=getattr(self.options, "ack_each", False) or load().queue_ack_each(self.lease.queue),
            coroutine=coroutine,
            task=self.task,
            context=context,
            retry=self.error is None or may_retry(self.options, self.error),
            log=self.context.log.text() if self.error is not None and self.context.log is not None else None,
            finishing=self.context.finishing and not self.context.finished,
            finish_result=self.context.result,
        )


def is_coroutine(lease: Lease) -> bool:
    """Whether the task or handler of `lease` is a coroutine function; False for what this process does not know."""
    found: Any = registry.find_handler(lease.queue) if lease.task is None else registry.find_task(lease.task)
    return found is not None and iscoroutinefunction(found.func)


def perform(lease: Lease, run: Run) -> Outcome:
    """Run the task or handler of `lease` in this thread; whatever it raises becomes the outcome."""
    attempt = Attempt(lease, run.asked_to_stop)
    try:
        with attempt:
            call = attempt.find()
            with running(attempt.context), run.watch.limited(limits_of(attempt.options), run.entry):
                task_signals.started(attempt.task, lease)
                value = call(attempt.context)
            attempt.returned(value)
        if attempt.context.untold:
            # What the job has left open would swallow it.
            drop_open_transactions()
            attempt.tell_progress()
    finally:
        clean_connections()
    return attempt.outcome(run.context, coroutine=False)


async def perform_coroutine(
    lease: Lease, entry: Any, asked_to_stop: Callable[[], bool], context: Context | None = None
) -> Outcome:
    """Run a coroutine task or handler on this thread's loop; whatever it raises becomes the outcome."""
    attempt = Attempt(lease, asked_to_stop)
    try:
        with attempt:
            call = attempt.find()
            limits, started = limits_of(attempt.options), subtasks.collect()
            with running(attempt.context), hard_limited(limits, entry):
                try:
                    value = await limited(attempt.body(call), limits.soft_seconds)
                finally:
                    await subtasks.end(started)
            attempt.returned(value)
        if attempt.context.untold:
            with suppress(CancelledError):
                await sync_to_async(attempt.tell_progress)()
    finally:
        # Of this coroutine's own context: there is one only where DJANGO_ALLOW_ASYNC_UNSAFE lets it open one.
        clean_connections()
    return attempt.outcome(context, coroutine=True)


def perform_within(lease: Lease, surroundings: AbstractContextManager[object]) -> Outcome:
    """Run the job of `lease` here, inside `surroundings`, without time limits, its connections left as they are.

    For jobqueue.testing, whose jobs run on the connection, and in the open transaction, of a test.
    """
    attempt = Attempt(lease, lambda: False)
    with attempt:
        call = attempt.find()
        with running(attempt.context), surroundings:
            task_signals.started(attempt.task, lease, within=True)
            value = call(attempt.context)
            if isawaitable(value):
                value = async_to_sync(_awaited)(value)
        attempt.returned(value)
    return attempt.outcome(None, coroutine=False)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _find(lease: Lease) -> tuple[Any, Callable[[JobContext], Any]]:
    if lease.task is None:
        handler = registry.find_handler(lease.queue)
        if handler is None:
            raise UnknownTask(f"no @handler for queue {lease.queue!r} in this worker")
        payload = _readable(lease.payload)
        return None, lambda context: handler.func(payload)
    task = registry.find_task(lease.task)
    if task is None:
        raise UnknownTask(f"task {lease.task!r} is not known to this worker")
    args, kwargs = arguments(task, _readable(lease.payload))
    if task.takes_context:
        return task, lambda context: task.func(_task_context(task, lease, context), *args, **kwargs)
    return task, lambda context: task.func(*args, **kwargs)


def _readable(payload: Any) -> Any:
    if isinstance(payload, PayloadError):
        raise payload
    return payload


def _task_context(task: Any, lease: Lease, context: JobContext) -> Any:
    from jobqueue.task_context import task_context

    return task_context(task, lease, context)


def _delay(options: Any, lease: Lease, error: BaseException | None) -> float | None:
    backoff = getattr(options, "backoff", None)
    if error is None or backoff is None or isinstance(error, ResultError):
        return None
    try:
        return wait_seconds(backoff, lease.attempt, error)
    except BaseException:
        logger.exception("backoff of task %s failed; job %d waits as JOBQUEUE says", lease.task, lease.job_id)
        return None
