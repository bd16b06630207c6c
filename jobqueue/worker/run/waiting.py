"""What one child has claimed and not begun, and the line of calls that wait for a job thread."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple

from jobqueue.transitions import Lease
from jobqueue.worker.shared.scoreboard import LeaseSlot


@dataclass(frozen=True, slots=True)
class Accepted:
    """How many of the claimed leases a child accepted, by kind, and the surplus."""

    sync: int
    coroutines: int
    surplus: list[Lease]  # of either kind, not taken: to be given back
    calls: int  # by which job threads run the sync ones
    alone: int  # of the sync ones, how many do not share a call

    @property
    def kept(self) -> int:
        """How many of them will run."""
        return self.sync + self.coroutines - len(self.surplus)


class Call(NamedTuple):
    """Leases that run together in one thread, their places on the scoreboard, and since when they wait (monotonic)."""

    leases: list[Lease]
    slots: list[LeaseSlot]
    since: float


class Waiting:
    """Job threads take the oldest call; the child's main thread adds calls, and takes back the newest."""

    def __init__(self) -> None:
        # One turn for each call: whoever has taken a turn surely finds a call, at either end, and nobody needs a lock.
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._calls: deque[Call] = deque()

    def __len__(self) -> int:
        return self._turns.qsize()

    def add(self, call: Call) -> None:
        """Behind all others."""
        self._calls.append(call)
        self._turns.put(None)

    def next(self) -> Call:
        """The oldest call; waits for one."""
        self._turns.get()
        return self._calls.popleft()

    def oldest_seconds(self) -> float:
        """How long the oldest call has waited; 0 when none waits."""
        with suppress(IndexError):
            return time.monotonic() - self._calls[0].since
        return 0.0

    def take_back(self, keep: int = 0) -> list[Lease]:
        """The leases of all calls but the oldest `keep`; they will not be run."""
        leases: list[Lease] = []
        with suppress(Empty):
            while len(self) > keep:
                self._turns.get_nowait()
                leases += self._calls.pop().leases
        return leases
