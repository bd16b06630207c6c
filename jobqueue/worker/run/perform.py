"""Run the jobs of one call, in this thread or on its event loop. No transaction of the worker is open meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

from jobqueue import otel
from jobqueue.conf.task_spec import NO_OPTIONS, TaskSpec
from jobqueue.context.job_context import JobContext, JobScope
from jobqueue.db.retry import count_refused_job
from jobqueue.middleware.chain import acall_run, call_run
from jobqueue.tasks import registry
from jobqueue.transitions import Lease
from jobqueue.transitions.verb import observe_ends
from jobqueue.worker.run import task_signals
from jobqueue.worker.run.attempt import Attempt, Outcome
from jobqueue.worker.run.batch import batch_function, call_batch
from jobqueue.worker.run.call_threads import check_transactions, checked, own_calls
from jobqueue.worker.run.timeouts import Together, Watch, hard_limited, limited, limits_of
from jobqueue.worker.shared.cleanup import clean_connections, drop_open_transactions
from jobqueue.worker.shared.scoreboard import LeaseSlot

Tasks: TypeAlias = set["asyncio.Task[object]"]

#: the asyncio tasks that the job of this context has started and that have not ended
_started: ContextVar[Tasks] = ContextVar("jobqueue_started_tasks")


@dataclass(slots=True, eq=False)
class Run:
    """Where a call runs in a worker: its lease slot, the watch of its thread, and whether it is asked to stop."""

    slot: LeaseSlot | Together
    watch: Watch
    asked_to_stop: Callable[[], bool]
    context: Context | None = None  # the contextvars in which perform() is called

    def around(self, options: TaskSpec) -> AbstractContextManager[object]:
        """Applies the time limits of a task with these options."""
        return self.watch.limited(limits_of(options), self.slot)


class InlineRun:
    """For jobqueue.testing: a call runs inside `surroundings`, on the connection and in the open transaction of a test.

    It has no time limits, and its connections are left as they are.
    """

    context = None

    def __init__(self, surroundings: AbstractContextManager[object]) -> None:
        self._surroundings = surroundings

    def asked_to_stop(self) -> bool:
        """Never."""
        return False

    def around(self, options: TaskSpec) -> AbstractContextManager[object]:
        """The context managers entered around one run."""
        return self._surroundings


def is_coroutine(lease: Lease) -> bool:
    """Whether the task or handler of `lease` is a coroutine function; False for one that this process does not know."""
    found = registry.find_handler(lease.queue) if lease.task is None else registry.find_task(lease.task)
    return found is not None and iscoroutinefunction(found.func)


def perform(leases: Sequence[Lease], run: Run | InlineRun) -> list[Outcome]:
    """Run `leases`, one of the calls of calls_of(), in this thread; returns their outcomes in the same order.

    An exception raised by a job becomes its outcome.
    """
    attempts = [Attempt(lease, run.asked_to_stop) for lease in leases]
    inline = isinstance(run, InlineRun)
    for attempt in attempts:
        attempt.begin()
    try:
        with otel.running(attempts), nullcontext() if inline else own_calls():
            if (function := batch_function(leases[0])) is not None:
                call_batch(function if inline else checked(function), attempts, run.around(NO_OPTIONS))
            else:
                _call(attempts[0], run, inline)
    finally:
        for attempt in attempts:
            attempt.end()
        if not inline:
            clean_connections()
    _count_refused(attempts)
    return [attempt.outcome(run.context) for attempt in attempts]


def _call(attempt: Attempt, run: Run | InlineRun, inline: bool) -> None:
    with attempt:
        call = attempt.find()
        with JobScope(attempt.context), observe_ends(attempt.context.was_settled), run.around(attempt.options):
            task_signals.started(attempt.task, attempt.lease, within=inline)
            body = partial(call, attempt.context)
            if inline and is_coroutine(attempt.lease):
                value = async_to_sync(acall_run)(attempt.context, body)
            else:
                value = call_run(attempt.context, body)
        if not inline:
            check_transactions()
        attempt.returned(value)
    if attempt.context.untold and not inline:
        # In a transaction that the job has left open, the write would be undone.
        drop_open_transactions()
        attempt.write_progress()


async def perform_coroutine(
    lease: Lease, slot: LeaseSlot, asked_to_stop: Callable[[], bool], context: Context | None = None
) -> Outcome:
    """Run a coroutine task or handler on this thread's event loop; an exception becomes the outcome."""
    attempt = Attempt(lease, asked_to_stop)
    attempt.coroutine = asyncio.current_task()
    attempt.begin()
    try:
        with otel.running([attempt]), attempt:
            call = attempt.find()
            limits, started = limits_of(attempt.options), Tasks()
            _started.set(started)
            settled = attempt.context.was_settled
            with JobScope(attempt.context), observe_ends(settled), hard_limited(limits, slot):
                try:
                    value = await limited(_body(attempt, call), limits.soft_seconds)
                finally:
                    await _cancel(started)
            attempt.returned(value)
        if attempt.context.untold:
            with suppress(asyncio.CancelledError):
                await sync_to_async(attempt.write_progress)()
    finally:
        attempt.end()
        # The connections of this coroutine's context; it has some only with DJANGO_ALLOW_ASYNC_UNSAFE.
        clean_connections()
    _count_refused([attempt])
    return attempt.outcome(context, coroutine=True)


def _count_refused(attempts: Sequence[Attempt]) -> None:
    """Django opens the connections of a body, so nobody but the job sees that there was none."""
    # One error may have ended several jobs of a call.
    for error in {id(attempt.error): attempt.error for attempt in attempts}.values():
        if error is not None:
            count_refused_job(error, using=attempts[0].lease.using)


async def _body(attempt: Attempt, call: Callable[[JobContext], Any]) -> object:
    await task_signals.astarted(attempt.task, attempt.lease)
    return await acall_run(attempt.context, partial(call, attempt.context))


def task_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """The task factory of the loop: a task that a job starts ends with it, because many jobs share the loop."""
    task: asyncio.Task[object] = asyncio.Task(coro, loop=loop, **options)
    started = _started.get(None)
    if started is not None:
        started.add(task)
        task.add_done_callback(started.discard)
    return task


async def _cancel(started: Tasks) -> None:
    """Cancel the tasks that still run and wait for them, as asyncio.run() does for a program."""
    left = list(started)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
