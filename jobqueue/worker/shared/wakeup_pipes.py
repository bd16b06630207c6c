"""Wake a child that waits: one pipe for each child, created by the supervisor before its first fork.

Every process of the worker keeps both ends of all pipes, so a pipe outlives the child and serves the next one.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

# A child that has found a job polls about this often by itself, and need not be woken as often as jobs come.
AGAIN_SECONDS = 0.005


class Room(Protocol):
    """What a wake-up needs to know of a child: a ProcessSlot."""

    room: int
    hot: int
    paused: int


class WakeupPipes:
    """The pipes, and the choice of the child to wake."""

    def __init__(self, slots: Sequence[Room]) -> None:
        self._slots = slots
        self._pipes = [os.pipe() for _ in slots]
        for _, write in self._pipes:
            os.set_blocking(write, False)
        self._woken_at = [-math.inf] * len(slots)
        self._last = 0

    def wake(self, first: int | None = None) -> None:
        """Wake one child that has room for a job: `first` if it has room, otherwise the child with the most.

        Ties go to the first child: with round robin every child would keep polling often, where one is enough.
        """
        able = self._able()
        if able:
            self._wake(first if first in able else max(able, key=lambda index: self._slots[index].room))

    def wake_another(self) -> None:
        """Wake a child with room other than the one that was woken last, which may hang; that one if it is alone."""
        able = self._able()
        if able:
            self._wake(next((index for index in able if index != self._last), self._last))

    def wake_all(self) -> None:
        for index in self._able():
            self._wake(index)

    def watch(self, index: int, wake: Callable[[], None]) -> None:
        """Call wake() for every wake-up of child `index`, from a thread that blocks in read()."""
        threading.Thread(target=self._watch, args=(index, wake), name="wakeup", daemon=True).start()

    def _able(self) -> list[int]:
        # One that is not hot may have looked since it was woken, found nothing, and begun a long pause.
        lately = time.monotonic() - AGAIN_SECONDS
        return [
            index
            for index, slot in enumerate(self._slots)
            if slot.room and not slot.paused and not (slot.hot and self._woken_at[index] > lately)
        ]

    def _wake(self, index: int) -> None:
        self._woken_at[index], self._last = time.monotonic(), index
        # A full pipe: the child does not read now, and enough wake-ups wait for it.
        with suppress(BlockingIOError):
            os.write(self._pipes[index][1], b"!")

    def _watch(self, index: int, wake: Callable[[], None]) -> None:
        while os.read(self._pipes[index][0], 4096):
            wake()
