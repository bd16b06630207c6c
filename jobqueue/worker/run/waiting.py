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

    @property
    def is_limited(self) -> bool:
        """Whether it has a slot of a limit, for which other jobs wait until it has run."""
        # No generator: this runs for every job.
        for lease in self.leases:  # noqa: SIM110
            if lease.slot is not None:
                return True
        return False


class Waiting:
    """Job threads take the oldest call, those with a slot of a limit first.

    The child's main thread adds calls and takes back the newest ones.
    """

    def __init__(self) -> None:
        # One turn for each call: a thread that has taken a turn finds a call, so no lock is needed.
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._limited: deque[Call] = deque()
        self._others: deque[Call] = deque()

    def __len__(self) -> int:
        return self._turns.qsize()

    def add(self, call: Call) -> None:
        """Add a call behind all others of its kind."""
        (self._limited if call.is_limited else self._others).append(call)
        self._turns.put(None)

    def next(self) -> Call:
        """Wait for a call, and return the one whose turn it is."""
        self._turns.get()
        while True:
            # Others may take the last limited one in between; then there is one among the others, or a new limited one.
            try:
                return (self._limited or self._others).popleft()
            except IndexError:
                continue

    def oldest_seconds(self) -> float:
        """Seconds that the call which has waited for longest has waited; 0 if none waits."""
        waited = 0.0
        for calls in (self._limited, self._others):
            with suppress(IndexError):
                waited = max(waited, time.monotonic() - calls[0].since)
        return waited

    def take_back(self, keep: int = 0) -> list[Lease]:
        """Remove all calls but the first `keep`; returns their leases, which do not run."""
        leases: list[Lease] = []
        with suppress(Empty):
            while len(self) > keep:
                self._turns.get_nowait()
                leases += self._last().leases
        return leases

    def _last(self) -> Call:
        while True:
            for calls in (self._others, self._limited):
                with suppress(IndexError):
                    return calls.pop()
