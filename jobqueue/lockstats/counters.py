"""Counters of locks and redone transactions in the memory of one process: a few additions per event, all bounded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from threading import RLock
from typing import NamedTuple

#: the key that stands for all keys without counters of their own
OTHER = ""
#: keys with counters of their own in one window; more are counted as OTHER
KEYS_MAX = 1000
#: keys with a row of their own in one window, the most contended first; the others are written as OTHER
KEYS_KEPT = 50
WINDOW_SECONDS = 60.0
#: windows that could not be written yet; older ones are dropped
WINDOWS_MAX = 5
#: where the server itself lets callers wait, a lock that took longer than this was not free
CONTENDED_SECONDS = 0.05


@dataclass(slots=True)
class Counters:
    """What became of the attempts to acquire a lock; times are sums in microseconds unless they end in _max."""

    acquired: int = 0
    contended: int = 0
    failed: int = 0
    released: int = 0
    reentries: int = 0
    wait_us: int = 0
    wait_us_max: int = 0
    held_us: int = 0
    held_us_max: int = 0

    def add(self, event: Mapping[str, int]) -> None:
        """Add counters given by their names."""
        for name, its in event.items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, its) if name.endswith("_max") else mine + its)

    @property
    def contention(self) -> tuple[int, int, int, int]:
        """The sort key of the most contended lock."""
        return self.failed + self.contended, self.reentries, self.wait_us, self.acquired


COUNTER_NAMES = tuple(field.name for field in fields(Counters))


def waited(seconds: float, *, acquired: bool, contended: bool = False) -> dict[str, int]:
    """The counters of a caller that acquired a lock, or gave up, after `seconds`."""
    micros = int(seconds * 1e6)
    waits = {"wait_us": micros, "wait_us_max": micros}
    if not acquired:
        return {"failed": 1, **waits}
    return {"acquired": 1, "contended": int(contended or seconds > CONTENDED_SECONDS), **waits}


class LockId(NamedTuple):
    """A lock: its kind, such as "mutex", and its key; the key OTHER stands for many."""

    kind: str
    key: str


class TransactionId(NamedTuple):
    """Transactions of one verb that one kind of error ended."""

    verb: str
    error: str


@dataclass(slots=True)
class Refused:
    """How many of them ran again, and how many raised the error to their caller."""

    redone: int = 0
    given_up: int = 0


class Window:
    """The counters of about one minute of a process."""

    def __init__(self, number: int) -> None:
        self.number, self.begun = number, time.monotonic()
        self.counters: dict[LockId, Counters] = {}
        self.refused: dict[TransactionId, Refused] = {}
        self.changes = self.written = 0
        self._kept: set[LockId] = set()

    def of(self, lock: LockId) -> Counters:
        """The counters of a lock, for the caller to change."""
        self.changes += 1
        found = self.counters.get(lock)
        if found is None:
            counted_as = lock if len(self.counters) < KEYS_MAX else LockId(lock.kind, OTHER)
            found = self.counters.setdefault(counted_as, Counters())
        return found

    def totals(self) -> dict[LockId, Counters]:
        """The counters of up to KEYS_KEPT keys, and of all others together as OTHER.

        A key that had a row once keeps it: the rows are totals, and a later write replaces an earlier one.
        """
        for lock in sorted(self.counters, key=lambda lock: self.counters[lock].contention, reverse=True):
            if len(self._kept) >= KEYS_KEPT:
                break
            if lock.key != OTHER:
                self._kept.add(lock)
        found: dict[LockId, Counters] = {}
        for lock, counters in self.counters.items():
            row = lock if lock in self._kept else LockId(lock.kind, OTHER)
            found.setdefault(row, Counters()).add(asdict(counters))
        return found


class Buffer:
    """The windows of this process that are not written yet, and the totals since it began."""

    def __init__(self) -> None:
        # Reentrant: a signal handler or a finalizer may count while this thread does.
        self._lock = RLock()
        self._window = Window(0)
        self._closed: deque[Window] = deque(maxlen=WINDOWS_MAX)
        self.total = Counters()

    def count(self, lock: LockId, event: Mapping[str, int]) -> None:
        """Add the counters of one event."""
        with self._lock:
            for counters in (self._window.of(lock), self.total):
                counters.add(event)

    def count_refused(self, transaction: TransactionId, *, redone: bool) -> None:
        """Add one try of a transaction that the database refused."""
        with self._lock:
            self._window.changes += 1
            found = self._window.refused.setdefault(transaction, Refused())
            found.redone += redone
            found.given_up += not redone

    def pending(self) -> Iterator[tuple[Window, dict[LockId, Counters]]]:
        """The windows to write and their totals, oldest first; asking for the next marks a window as written."""
        with self._lock:
            if time.monotonic() - self._window.begun >= WINDOW_SECONDS and self._window.changes:
                self._closed.append(self._window)
                self._window = Window(self._window.number + 1)
            windows = [*self._closed, self._window]
        for window in windows:
            with self._lock:
                if window.changes == window.written:
                    continue
                totals, changes = window.totals(), window.changes
            yield window, totals
            window.written = changes

    def forget_written(self) -> None:
        """Drop past windows that are written."""
        with self._lock:
            kept = [window for window in self._closed if window.written != window.changes]
            self._closed = deque(kept, maxlen=WINDOWS_MAX)
