"""Time limits of running jobs: the soft one raises SoftTimeout in the job, the hard one ends its process."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import NamedTuple, Protocol, TypeVar

from jobqueue.conf import load
from jobqueue.conf.task_spec import TaskSpec
from jobqueue.exceptions import SoftTimeout
from jobqueue.worker.run import job_fork
from jobqueue.worker.shared.cleanup import doubt_connections

T = TypeVar("T")


class Limits(NamedTuple):
    """Seconds a body may run; None: no limit."""

    soft_seconds: float | None
    hard_seconds: float | None


class Limited(Protocol):
    """Has `hard_until`, which the monitor reads: a LeaseSlot, or Together."""

    hard_until: float


_UNLIMITED = Limits(None, None)
_NO_LIMITS: AbstractContextManager[None] = nullcontext()


def limits_of(options: TaskSpec) -> Limits:
    """The limits of a task, or of a job's own options; JOBQUEUE's where those have none, as for a handler."""
    settings = load()
    soft, hard = options.timeout_seconds, options.hard_timeout_seconds
    return Limits(
        settings.timeout_seconds if soft is None else soft,
        settings.hard_timeout_seconds if hard is None else hard,
    )


async def limited(body: Awaitable[T], soft_seconds: float | None) -> T:
    """Await `body`, and cancel it after `soft_seconds`. Raises SoftTimeout if it was canceled.

    The loop can cancel a body only where it awaits: while a coroutine blocks the loop, the limits of all are late.
    """
    try:
        async with asyncio.timeout(soft_seconds) as limit:
            return await body
    except TimeoutError:
        if limit.expired():
            raise SoftTimeout(f"ran for longer than {soft_seconds:g} s") from None
        raise


@contextmanager
def hard_limited(limits: Limits, slot: Limited) -> Iterator[None]:
    """Within the block, the scoreboard shows the monitor the hard limit."""
    slot.hard_until = 0.0 if limits.hard_seconds is None else time.monotonic() + limits.hard_seconds
    try:
        yield
    finally:
        # The forks of a job share the scoreboard: one that returns must not remove the limit of its parent.
        if not job_fork.is_forked():
            slot.hard_until = 0.0


class Together:
    """The slots of the jobs of one call, which have one time limit."""

    def __init__(self, slots: Sequence[Limited]) -> None:
        self._slots = slots

    @property
    def hard_until(self) -> float:
        """The limit of each of them."""
        return self._slots[0].hard_until

    @hard_until.setter
    def hard_until(self, instant: float) -> None:
        for slot in self._slots:
            slot.hard_until = instant


class _Delivered(SoftTimeout):
    """The class that is sent to a thread. Python creates the instance in that thread, before any handler runs."""

    def __new__(cls, *args: object) -> SoftTimeout:  # type: ignore[misc]
        with suppress(Exception):
            # A driver may be between a statement and its answer.
            doubt_connections()
        return SoftTimeout(*args)


class Watch:
    """The time limits of the call that one job thread runs now."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._soft_until: float | None = None

    def limited(self, limits: Limits, slot: Limited) -> AbstractContextManager[None]:
        """Within the block SoftTimeout may be raised at any line; the scoreboard shows the monitor the hard limit."""
        if limits == _UNLIMITED and not slot.hard_until:
            return _NO_LIMITS
        return self._limited(limits, slot)

    @contextmanager
    def _limited(self, limits: Limits, slot: Limited) -> Iterator[None]:
        with hard_limited(limits, slot):
            self._soft_until = None if limits.soft_seconds is None else time.monotonic() + limits.soft_seconds
            try:
                yield
            finally:
                self._end()

    def enforce(self) -> None:
        """Raise SoftTimeout in the job's thread if its time is up. Called by another thread.

        The exception is delivered when the job's thread next runs Python code; only the hard limit ends a body that
        blocks in C.
        """
        with self._lock:
            if self._soft_until is not None and time.monotonic() >= self._soft_until:
                self._soft_until = None
                set_async = ctypes.pythonapi.PyThreadState_SetAsyncExc
                set_async(ctypes.c_ulong(self._thread), ctypes.py_object(_Delivered))

    def _end(self) -> None:
        if job_fork.is_forked():
            # The thread that may have held the lock during the fork does not exist here: the lock stays locked.
            return
        try:
            with self._lock:
                self._soft_until = None
            # An exception that was sent at the last moment is delivered here, after the end of the body.
            for _ in range(3):
                pass
        except SoftTimeout:
            self._soft_until = None
