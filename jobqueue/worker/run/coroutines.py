"""The coroutine jobs of one child: many at once on one event loop, in one thread."""

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

from jobqueue.transitions import Lease
from jobqueue.worker.run import job_fork, subtasks
from jobqueue.worker.run.calls import OneThread, serve_calls
from jobqueue.worker.run.perform import Ending, Outcome, perform_coroutine
from jobqueue.worker.shared.scoreboard import Hold


@dataclass(slots=True)
class _Body:
    lease: Lease
    slot: Any
    context: Context = field(default_factory=Context)
    outcome: Outcome | None = None


class CoroutineRunner:
    """Runs at most `places` coroutine jobs at once; hand_over(outcome, free) gets how each ended, and frees its place.

    What is not fit(lease, slot) when its turn comes is left out.

    The child's main thread submits and takes back; everything else happens in the loop's thread.
    """

    def __init__(
        self,
        places: int,
        hand_over: Callable[[Outcome, Callable[[], object]], None],
        fit: Callable[[Lease, Any], bool],
        stopping: Callable[[], bool],
        asked_to_stop: Callable[[Any], bool],
    ) -> None:
        self._places, self._hand_over, self._fit = places, hand_over, fit
        self._stopping, self._asked_to_stop = stopping, asked_to_stop
        self._todo: deque[tuple[Lease, Any, float]] = deque()
        self._running = 0
        self._bodies = 0  # of these, those that have not ended
        self._called = False
        self._answer: threading.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: OneThread | None = None

    @property
    def waiting(self) -> bool:
        """Whether the loop has not come to what it was given: more would wait, too."""
        return self._called or bool(self._todo)

    def answers(self) -> bool:
        """Whether the loop has come to the question of an earlier call; then the next one asks anew.

        True if there is no loop.
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
        """How long the first lease that the loop has not taken has waited; 0 when none waits."""
        with suppress(IndexError):
            return time.monotonic() - self._todo[0][2]
        return 0.0

    def submit(self, lease: Lease, slot: Any) -> None:
        """Run `lease` when a place is free."""
        loop = self._loop or self.open()
        self._todo.append((lease, slot, time.monotonic()))
        if not self._called:
            self._called = True
            loop.call_soon_threadsafe(self._fill, loop, context=Context())

    def take_back(self) -> list[Lease]:
        """The leases that were not started; they will not be."""
        leases: list[Lease] = []
        with suppress(IndexError):
            while True:
                leases.append(self._todo.popleft()[0])
        return leases

    def open(self) -> asyncio.AbstractEventLoop:
        """Start the loop's thread."""
        self._loop = loop = asyncio.new_event_loop()
        loop.set_task_factory(subtasks.factory)
        self._calls = serve_calls(loop)
        # A daemon, like the job threads: a coroutine that never ends must not keep the process from leaving.
        threading.Thread(target=self._serve, args=[loop], name="coroutines", daemon=True).start()
        return loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            # SystemExit and KeyboardInterrupt of a task that a job has started come out of the loop, and loop.stop()
            # ends it; what else is on it goes on.
            with suppress(BaseException):
                loop.run_forever()

    def _fill(self, loop: asyncio.AbstractEventLoop) -> None:
        # Before the look at the queue: what is added after the look calls again.
        self._called = False
        # On a stop what was not begun is left for take_back(): running jobs that heed should_stop free their places.
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
            # Its own context: nothing that one job sets (time zone, language, connections) reaches another.
            task = loop.create_task(self._run(body), context=body.context)
            task.add_done_callback(partial(self._over, loop, body))

    async def _run(self, body: _Body) -> None:
        # From here on the job counts as started, whatever happens to this process.
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
            # Some job has cancelled the tasks of all others: it reached this one before its body began, or at its end.
            body.outcome = Outcome(body.lease, Ending.FAILED, 0.0, error=error, coroutine=True)
            body.outcome.note_on(body.slot)
        free: Callable[[], object] = partial(self._free, loop)
        if body.outcome.ack_each:
            # Called by whoever has written its end.
            free = partial(loop.call_soon_threadsafe, free, context=Context())
        self._hand_over(body.outcome, free)
        self._bodies -= 1
        if self._calls is not None:
            self._calls.job_ended(last=not self._bodies)

    def _free(self, loop: asyncio.AbstractEventLoop) -> None:
        self._running -= 1
        self._fill(loop)
