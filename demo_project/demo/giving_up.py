"""When the demo ends early, and why."""

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from demo_project.demo.speed import patient

#: without a change for so long, things stand still, and are not only slow
STILL_SECONDS = 20
#: without a change for so long on a quiet machine, the demo gives up; on a busy one it waits longer
PATIENCE_SECONDS = 60
_moved_at = _over_at = math.inf
#: one entry per block of undisturbed(): whether the time ended in it
_held: list[bool] = []


class GaveUp(Exception):
    """The demo does not go on; the text is the cause. No TimeUp follows it."""

    def __init__(self, cause: str) -> None:
        stop_timer()
        super().__init__(cause)


class TimeUp(BaseException):
    """The time is over; whoever knows what is missing turns this into GaveUp."""


def start_timer(seconds: float | None = None) -> None:
    """Raise TimeUp in the main thread, wherever it is, once nothing has moved for long, or after `seconds`."""
    global _over_at
    _over_at = math.inf if seconds is None else time.monotonic() + seconds
    moved()
    signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, _seconds_left())


def moved() -> None:
    """Something has moved, so that the demo goes on, however slow the machine is."""
    global _moved_at
    _moved_at = time.monotonic()


def stop_timer() -> None:
    """Raise no TimeUp any more."""
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Raise TimeUp after the block, not in it: for what must be finished, such as the start of a process."""
    _held.append(False)
    try:
        yield
    finally:
        late = _held.pop()
    if late:
        raise TimeUp


def _seconds_left() -> float:
    return min(_over_at, _moved_at + patient(PATIENCE_SECONDS)) - time.monotonic()


def _alarm(number: int, frame: FrameType | None) -> None:
    left = _seconds_left()
    if left > 0:
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.001))
        return
    if _held:
        _held[-1] = True
        return
    # The processes of a race, which would be waited for.
    for child in multiprocessing.active_children():
        child.kill()
    raise TimeUp


class Pace:
    """How far a stage has come, and since when it stands still. Each step keeps the demo from giving up."""

    def __init__(self, total: int, things: str) -> None:
        self.total, self.things = total, things
        self.done = 0
        self.began = self.moved_at = time.monotonic()

    def see(self, done: int) -> None:
        """Note that `done` things are done."""
        if done != self.done:
            self.done, self.moved_at = done, time.monotonic()
            moved()

    def cause(self) -> str:
        """Why the time was not enough: things stand still, or the machine is slow."""
        now = time.monotonic()
        have = f"{self.done} of {self.total} {self.things} after {now - self.began:.0f} s"
        load, cores = os.getloadavg()[0], os.cpu_count()
        if now - self.moved_at >= STILL_SECONDS or not self.done:
            return f"{have}, and nothing has changed for {now - self.moved_at:.0f} s"
        rate = self.done / (now - self.began)
        return f"{have}, which is too slow ({rate:.1f} a second; the load is {load:.1f} on {cores} cores)"
