"""Figures about locks in the memory of one process: a few additions per event, bounded in every direction."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from threading import RLock

#: the key that stands for all that are not counted by themselves
OTHER = ""
#: keys counted by themselves in one period; more fall under OTHER
KEYS_MAX = 1000
#: keys written down by themselves in one period, the most contended first; the rest goes under OTHER
KEYS_KEPT = 50
PERIOD_SECONDS = 60.0
#: periods that could not be written yet; older ones are forgotten
PERIODS_MAX = 5
#: where the server itself lets callers wait, a lock that took longer than this was not free
CONTENDED_SECONDS = 0.05


@dataclass(slots=True)
class Tally:
    """What became of the attempts to get one lock; times are sums in microseconds unless they end in _max."""

    acquired: int = 0
    contended: int = 0
    failed: int = 0
    released: int = 0
    reentries: int = 0
    wait_us: int = 0
    wait_us_max: int = 0
    held_us: int = 0
    held_us_max: int = 0

    def add(self, other: Tally) -> None:
        """Take the figures of `other` in."""
        for field in FIGURES:
            mine, its = getattr(self, field), getattr(other, field)
            setattr(self, field, max(mine, its) if field.endswith("_max") else mine + its)

    @property
    def contention(self) -> tuple[int, int, int, int]:
        """What the most contended key has most of."""
        return self.failed + self.contended, self.reentries, self.wait_us, self.acquired


FIGURES = tuple(field.name for field in fields(Tally))
Place = tuple[str, str]


class Period:
    """About a minute of a process."""

    def __init__(self, number: int) -> None:
        self.number, self.begun = number, time.monotonic()
        self.tallies: dict[Place, Tally] = {}
        self.changes = self.written = 0
        self._kept: set[Place] = set()

    def at(self, kind: str, key: str) -> Tally:
        """The figures of a key, to be changed."""
        self.changes += 1
        found = self.tallies.get((kind, key))
        if found is None:
            place = (kind, key) if len(self.tallies) < KEYS_MAX else (kind, OTHER)
            found = self.tallies.setdefault(place, Tally())
        return found

    def lines(self) -> dict[Place, Tally]:
        """KEYS_KEPT keys by themselves, all others as OTHER. A key once given by itself stays so: rows are totals."""
        by_rank = sorted(self.tallies, key=lambda place: self.tallies[place].contention, reverse=True)
        for place in by_rank:
            if len(self._kept) >= KEYS_KEPT:
                break
            if place[1] != OTHER:
                self._kept.add(place)
        found: dict[Place, Tally] = {}
        for (kind, key), tally in self.tallies.items():
            place = (kind, key) if (kind, key) in self._kept else (kind, OTHER)
            found.setdefault(place, Tally()).add(tally)
        return found


class Book:
    """All figures of this process that are not written yet, and the sums since it began."""

    def __init__(self) -> None:
        # Reentrant: a signal's handler or a finalizer may count while this thread does.
        self._lock = RLock()
        self._period = Period(0)
        self._closed: deque[Period] = deque(maxlen=PERIODS_MAX)
        self.total = Tally()

    def acquired(self, kind: str, key: str, seconds: float, *, contended: bool) -> None:
        """Somebody got the lock after `seconds`."""
        waited = int(seconds * 1e6)
        with self._lock:
            for tally in (self._period.at(kind, key), self.total):
                tally.acquired += 1
                tally.contended += contended or seconds > CONTENDED_SECONDS
                tally.wait_us += waited
                tally.wait_us_max = max(tally.wait_us_max, waited)

    def failed(self, kind: str, key: str, seconds: float) -> None:
        """Somebody gave up after `seconds`."""
        waited = int(seconds * 1e6)
        with self._lock:
            for tally in (self._period.at(kind, key), self.total):
                tally.failed += 1
                tally.wait_us += waited
                tally.wait_us_max = max(tally.wait_us_max, waited)

    def released(self, kind: str, key: str, seconds: float) -> None:
        """A holder gave it back in time, after `seconds`."""
        held = int(seconds * 1e6)
        with self._lock:
            for tally in (self._period.at(kind, key), self.total):
                tally.released += 1
                tally.held_us += held
                tally.held_us_max = max(tally.held_us_max, held)

    def reentered(self, kind: str, key: str) -> None:
        """A holder came back to a lock that it had lost."""
        with self._lock:
            for tally in (self._period.at(kind, key), self.total):
                tally.reentries += 1

    def pending(self) -> Iterator[tuple[Period, dict[Place, Tally]]]:
        """What to write, the oldest first; tell written() of each that was."""
        with self._lock:
            if time.monotonic() - self._period.begun >= PERIOD_SECONDS and self._period.tallies:
                self._closed.append(self._period)
                self._period = Period(self._period.number + 1)
            periods = [*self._closed, self._period]
        for period in periods:
            with self._lock:
                if period.changes == period.written:
                    continue
                lines, changes = period.lines(), period.changes
            yield period, lines
            period.written = changes

    def forget_written(self) -> None:
        """Let go of past periods that are written."""
        with self._lock:
            kept = [period for period in self._closed if period.written != period.changes]
            self._closed = deque(kept, maxlen=PERIODS_MAX)
