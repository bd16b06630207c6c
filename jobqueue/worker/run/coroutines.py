"""The coroutine jobs of one child: one thread with an event loop runs many of them at once.

The synchronous calls that they make, above all the ORM's, run in threads beside the loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from asgiref.sync import AsyncToSync

from jobqueue.transitions import Lease
from jobqueue.worker.run import job_fork
from jobqueue.worker.run.attempt import Ending, Outcome
from jobqueue.worker.run.call_threads import AnyThread, OneThread
from jobqueue.worker.run.perform import perform_coroutine, task_factory
from jobqueue.worker.shared.scoreboard import Hold, LeaseSlot


@dataclass(slots=True)
class _Body:
    lease: Lease
    slot: LeaseSlot
    context: Context = field(default_factory=Context)
    outcome: Outcome | None = None


class CoroutineRunner:
    """Runs at most `places` coroutine jobs at once.

    hand_over(outcome, free) receives each outcome, and calls free() when the place may be used again. A lease for
    which fit(lease, slot) is false when its turn comes is not started.

    The child's main thread calls submit() and take_back(); everything else happens in the loop's thread.
    """

    def __init__(
        self,
        places: int,
        hand_over: Callable[[Outcome, Callable[[], object]], None],
        fit: Callable[[Lease, LeaseSlot], bool],
        stopping: Callable[[], bool],
        asked_to_stop: Callable[[LeaseSlot], bool],
    ) -> None:
        self._places, self._hand_over, self._fit = places, hand_over, fit
        self._stopping, self._asked_to_stop = stopping, asked_to_stop
        self._todo: deque[tuple[Lease, LeaseSlot, float]] = deque()
        self._running = 0
        self._bodies = 0  # of these, those that have not ended
        self._called = False
        self._answer: threading.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: OneThread | None = None

    @property
    def waiting(self) -> bool:
        """Whether submitted leases wait for the loop."""
        return self._called or bool(self._todo)

    def answers(self) -> bool:
        """Whether the loop has answered an earlier call of this method; the next call asks again.

        True without a loop.
        """
        if self._loop is None:
            return True
        if self._answer is None:
            self._answer = threading.Event()
            self._loop.call_soon_threadsafe(self._answer.set, context=Context())
        elif self._answer.is_set():
            self._answer = None
            return True
        return False

    def oldest_seconds(self) -> float:
        """Seconds that the first waiting lease has waited; 0 when none waits."""
        with suppress(IndexError):
            return time.monotonic() - self._todo[0][2]
        return 0.0

    def submit(self, lease: Lease, slot: LeaseSlot) -> None:
        """Run `lease` as soon as a place is free."""
        loop = self._loop or self.open()
        self._todo.append((lease, slot, time.monotonic()))
        if not self._called:
            self._called = True
            loop.call_soon_threadsafe(self._fill, loop, context=Context())

    def take_back(self) -> list[Lease]:
        """Remove and return the leases that were not started."""
        leases: list[Lease] = []
        with suppress(IndexError):
            while True:
                leases.append(self._todo.popleft()[0])
        return leases

    def open(self) -> asyncio.AbstractEventLoop:
        """Start the loop's thread."""
        self._loop = loop = asyncio.new_event_loop()
        loop.set_task_factory(task_factory)
        self._calls = _serve_calls(loop)
        # A daemon, like the job threads: a coroutine that never ends must not keep the process alive.
        threading.Thread(target=self._serve, args=[loop], name="coroutines", daemon=True).start()
        return loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            # SystemExit or KeyboardInterrupt in a task that a job started, and loop.stop(), end run_forever(); the
            # other jobs continue.
            with suppress(BaseException):
                loop.run_forever()

    def _fill(self, loop: asyncio.AbstractEventLoop) -> None:
        # Before the queue is read: a lease that is added later schedules another call.
        self._called = False
        # When the worker stops, waiting leases are left for take_back(), although jobs that stop free their places.
        while self._running < self._places and not self._stopping():
            try:
                lease, slot, _ = self._todo.popleft()
            except IndexError:
                return
            if not self._fit(lease, slot):
                continue
            body = _Body(lease, slot)
            self._running += 1
            self._bodies += 1
            # A context of its own: a time zone, language or connection of one job must not reach another.
            task = loop.create_task(self._run(body), context=body.context)
            task.add_done_callback(partial(self._over, loop, body))

    async def _run(self, body: _Body) -> None:
        # From here on the job counts as started, even if this process dies.
        body.slot.hold = Hold.RUNNING
        stop = partial(self._asked_to_stop, body.slot)
        outcome = await perform_coroutine(body.lease, body.slot, stop, body.context)
        if job_fork.is_forked():
            job_fork.leave(outcome.error)
        outcome.note_on(body.slot)
        body.outcome = outcome

    def _over(self, loop: asyncio.AbstractEventLoop, body: _Body, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if body.outcome is None:
            # A job cancelled all tasks of the loop, this one before its body began or at its end.
            body.outcome = Outcome(body.lease, Ending.FAILED, 0.0, error=error, coroutine=True)
            body.outcome.note_on(body.slot)
        free: Callable[[], object] = partial(self._free, loop)
        if body.outcome.ack_each:
            # Called by the thread that has written its end.
            free = partial(loop.call_soon_threadsafe, free, context=Context())
        self._hand_over(body.outcome, free)
        self._bodies -= 1
        if self._calls is not None:
            self._calls.job_ended(last=not self._bodies)

    def _free(self, loop: asyncio.AbstractEventLoop) -> None:
        self._running -= 1
        self._fill(loop)


def _serve_calls(loop: asyncio.AbstractEventLoop) -> OneThread:
    """Give `loop` its threads for synchronous calls; returns the thread for thread-sensitive calls."""
    thread = OneThread()
    # asgiref looks here for the thread of a loop's thread-sensitive calls. Its public API,
    # ThreadSensitiveContext(executor=...), is newer than the asgiref that Django 5.2 requires.
    executors: Any = AsyncToSync.loop_thread_executors
    executors[loop] = thread
    loop.set_default_executor(AnyThread(thread_name_prefix="coroutine-any"))
    return thread
