"""Time limits of running jobs: a soft one raises in the job, a hard one ends its process."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

from jobqueue.conf import load
from jobqueue.exceptions import SoftTimeout
from jobqueue.worker.run import job_fork
from jobqueue.worker.shared.cleanup import doubt_connections


class Limits(NamedTuple):
    """Seconds a body may run; None = no limit."""

    soft_seconds: float | None
    hard_seconds: float | None


_UNLIMITED = Limits(None, None)
_NO_LIMITS: AbstractContextManager[None] = nullcontext()


def limits_of(task: Any) -> Limits:
    """The limits of a task, or JOBQUEUE's where it (or a handler) has none of its own."""
    settings = load()
    soft, hard = getattr(task, "timeout_seconds", None), getattr(task, "hard_timeout_seconds", None)
    return Limits(
        settings.timeout_seconds if soft is None else soft,
        settings.hard_timeout_seconds if hard is None else hard,
    )


async def limited(body: Awaitable[Any], soft_seconds: float | None) -> Any:
    """Await `body`; SoftTimeout when it takes longer than soft_seconds: it is cancelled first.

    The loop can only cancel what awaits: while some coroutine blocks the loop, the limits of all of them are late.
    """
    try:
        async with asyncio.timeout(soft_seconds) as limit:
            return await body
    except TimeoutError:
        if limit.expired():
            raise SoftTimeout(f"ran for longer than {soft_seconds:g} s") from None
        raise


@contextmanager
def hard_limited(limits: Limits, slot: Any) -> Iterator[None]:
    """Within the block the hard limit stands on the scoreboard, for the monitor."""
    slot.hard_until = 0.0 if limits.hard_seconds is None else time.monotonic() + limits.hard_seconds
    try:
        yield
    finally:
        _clear(slot)


def _clear(slot: Any) -> None:
    # The scoreboard is shared with the forks of a job: one that comes back must not lift its parent's limit.
    if not job_fork.is_forked():
        slot.hard_until = 0.0


class Together:
    """The slots of jobs that run in one call, as one: they have one time limit."""

    def __init__(self, slots: Sequence[Any]) -> None:
        self._lease_slots = slots

    @property
    def hard_until(self) -> float:
        """That of each of them."""
        return float(self._lease_slots[0].hard_until)

    @hard_until.setter
    def hard_until(self, instant: float) -> None:
        for slot in self._lease_slots:
            slot.hard_until = instant


class _Delivered(SoftTimeout):
    """What is sent to a thread: Python makes it there, when it raises it and before any handler runs."""

    def __new__(cls, *args: object) -> SoftTimeout:  # type: ignore[misc]
        with suppress(Exception):
            # A driver may be between a statement and its answer.
            doubt_connections()
        return SoftTimeout(*args)


class Watch:
    """The time limits of what one job thread runs now."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._soft_until: float | None = None

    def limited(self, limits: Limits, slot: Any) -> AbstractContextManager[None]:
        """Within the block SoftTimeout may be raised at any line; the scoreboard shows the monitor the hard limit."""
        if limits == _UNLIMITED and not slot.hard_until:
            return _NO_LIMITS
        return self._limited(limits, slot)

    @contextmanager
    def _limited(self, limits: Limits, slot: Any) -> Iterator[None]:
        now = time.monotonic()
        slot.hard_until = 0.0 if limits.hard_seconds is None else now + limits.hard_seconds
        self._soft_until = None if limits.soft_seconds is None else now + limits.soft_seconds
        try:
            yield
        finally:
            self._end(slot)

    def enforce(self) -> None:
        """Called by another thread: raise SoftTimeout in the body if its time is up.

        Delivered when the thread next runs Python code; a body that blocks in C is left to the hard limit.
        """
        with self._lock:
            if self._soft_until is not None and time.monotonic() >= self._soft_until:
                self._soft_until = None
                set_async = ctypes.pythonapi.PyThreadState_SetAsyncExc
                set_async(ctypes.c_ulong(self._thread), ctypes.py_object(_Delivered))

    def _end(self, slot: Any) -> None:
        if job_fork.is_forked():
            # Who was about to enforce the limit when the job forked is not here, and would hold the lock for ever.
            return
        try:
            with self._lock:
                self._soft_until = None
            # Sent in the last moment it is delivered here, where it harms nothing: the body has ended.
            for _ in range(3):
                pass
        except SoftTimeout:
            self._soft_until = None
        _clear(slot)
