"""The calls of one child that wait for a job thread, and the result of giving it leases."""

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
    """How many leases of a claim a child accepted, by kind, and the surplus."""

    sync: int
    coroutines: int
    surplus: list[Lease]  # of both kinds; these are given back
    calls: int  # how many calls run the sync ones
    alone: int  # how many of the sync ones share no call

    @property
    def kept(self) -> int:
        """How many of them will run."""
        return self.sync + self.coroutines - len(self.surplus)


class Call(NamedTuple):
    """Leases that run together in one thread, their slots, and since when they wait (monotonic)."""

    leases: list[Lease]
    slots: list[LeaseSlot]
    since: float


class Waiting:
    """Job threads take the oldest call. The child's main thread adds calls and takes back the newest ones."""

    def __init__(self) -> None:
        # One turn for each call: a thread that has taken a turn finds a call at either end, so no lock is needed.
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._calls: deque[Call] = deque()

    def __len__(self) -> int:
        return self._turns.qsize()

    def add(self, call: Call) -> None:
        """Add a call behind all others."""
        self._calls.append(call)
        self._turns.put(None)

    def next(self) -> Call:
        """Wait for a call, and return the oldest."""
        self._turns.get()
        return self._calls.popleft()

    def oldest_seconds(self) -> float:
        """Seconds that the oldest call has waited; 0 if none waits."""
        with suppress(IndexError):
            return time.monotonic() - self._calls[0].since
        return 0.0

    def take_back(self, keep: int = 0) -> list[Lease]:
        """Remove all calls but the oldest `keep`; returns their leases, which do not run."""
        leases: list[Lease] = []
        with suppress(Empty):
            while len(self) > keep:
                self._turns.get_nowait()
                leases += self._calls.pop().leases
        return leases
