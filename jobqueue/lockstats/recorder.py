"""Counts locks and redone transactions of this process in memory; a thread of its own writes them at intervals.

Callers' threads and transactions write nothing, and every process writes rows of its own. A process that is killed
loses what it counted since the last write.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import NamedTuple

from django.db import connections

from jobqueue.conf import is_test_run, load
from jobqueue.db import fault_vendor
from jobqueue.db.background_writer import BackgroundWriter
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.clock import UtcNow
from jobqueue.db.diagnostics import Deadlock
from jobqueue.db.retry import Refusal
from jobqueue.db.time_limit import watched
from jobqueue.db.upsert import digest, write_rows
from jobqueue.exceptions import WrongSettings
from jobqueue.models import LockFinding, LockStat

logger = logging.getLogger("jobqueue.locks")

#: the key that stands for all keys without counters of their own
OTHER = ""
#: the kind of counters that are of transactions which the database refused; their key is the verb and the error
TRANSACTION = "transaction"
#: keys with counters of their own in one window; more are counted as OTHER
KEYS_MAX = 1000
#: keys with a row of their own in one window, the most contended first; the others are written as OTHER
KEYS_KEPT = 50
WINDOW_SECONDS = 60.0
#: windows that could not be written yet; older ones are dropped
WINDOWS_MAX = 5
#: where the server itself lets callers wait, a lock that took longer than this was not free
CONTENDED_SECONDS = 0.05
#: findings that could not be written yet; older ones are dropped
FINDINGS_MAX = 100


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
    """A lock: its kind, such as "mutex", and its key; the key OTHER stands for many.

    Or the transactions of one verb that one kind of error ended: those that ran again are counted as `contended`, and
    those that raised the error to their caller as `failed`.
    """

    kind: str
    key: str

    @property
    def is_transaction(self) -> bool:
        """They are few, so each has counters and a row of its own."""
        return self.kind == TRANSACTION


class Window:
    """The counters of about one minute of a process."""

    def __init__(self, number: int) -> None:
        self.number, self.begun = number, time.monotonic()
        self.counters: dict[LockId, Counters] = {}
        self.changes = self.written = 0
        self._kept: set[LockId] = set()

    def of(self, lock: LockId) -> Counters:
        """The counters of a lock, for the caller to change."""
        self.changes += 1
        found = self.counters.get(lock)
        if found is None:
            has_room = lock.is_transaction or len(self.counters) < KEYS_MAX
            counted_as = lock if has_room else LockId(lock.kind, OTHER)
            found = self.counters.setdefault(counted_as, Counters())
        return found

    def totals(self) -> dict[LockId, Counters]:
        """The counters of up to KEYS_KEPT keys, and of all others together as OTHER.

        A key that had a row once keeps it: the rows are totals, and a later write replaces an earlier one.
        """
        keys = [lock for lock in self.counters if lock.key != OTHER and not lock.is_transaction]
        for lock in sorted(keys, key=lambda lock: self.counters[lock].contention, reverse=True):
            if len(self._kept) >= KEYS_KEPT:
                break
            self._kept.add(lock)
        found: dict[LockId, Counters] = {}
        for lock, counters in self.counters.items():
            row = lock if lock.is_transaction or lock in self._kept else LockId(lock.kind, OTHER)
            found.setdefault(row, Counters()).add(asdict(counters))
        return found


class Buffer:
    """The windows of this process that are not written yet, and the totals since it began."""

    def __init__(self) -> None:
        # Reentrant: a signal handler or a finalizer may count while this thread does.
        self._lock = threading.RLock()
        self._window = Window(0)
        self._closed: deque[Window] = deque(maxlen=WINDOWS_MAX)
        self.total = Counters()

    def count(self, lock: LockId, event: Mapping[str, int]) -> None:
        """Add the counters of one event; the total is that of locks."""
        with self._lock:
            self._window.of(lock).add(event)
            if not lock.is_transaction:
                self.total.add(event)

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


@dataclass(frozen=True, slots=True)
class Finding:
    """Something for people to see. One `identity` and kind is one row, whichever process writes it."""

    kind: LockFinding.Kind
    identity: str
    detail: Mapping[str, object]
    seconds: float | None = None


def deadlock_finding(report: Deadlock) -> Finding:
    return Finding(LockFinding.Kind.DEADLOCK, report.identity, asdict(report))


def write_counters(window: int, counters: Mapping[LockId, Counters], *, using: str) -> None:
    """Write the counters of a window of this process; a later call with newer ones replaces them."""
    rows = [
        LockStat(
            id=digest(_process.source, str(window), *lock),
            kind=lock.kind,
            lock_key=lock.key,
            # Django 6 leaves a column with its default out of the INSERT, and then MySQL cannot update by it.
            counted_at=UtcNow(),
            **asdict(counted),
        )
        # In order of the key: two processes never write one row, but their index entries are neighbours.
        for lock, counted in sorted(counters.items())
    ]
    write_rows(rows, ("counted_at", *COUNTER_NAMES), using=using)


def keep_findings(findings: Sequence[Finding], *, using: str) -> None:
    """Write one row per finding; a finding that is seen again gets its newer details and keeps first_seen_at."""
    by_id = {digest(b"", found.kind.value, found.identity): found for found in findings}
    rows = [
        LockFinding(
            id=key,
            kind=found.kind.value,
            first_seen_at=UtcNow(),
            last_seen_at=UtcNow(),
            seconds=found.seconds,
            detail=dict(found.detail),
        )
        for key, found in sorted(by_id.items())
    ]
    write_rows(rows, ("last_seen_at", "seconds", "detail"), using=using)


class _Process:
    """The state of one process; a forked process starts with an empty one."""

    def __init__(self) -> None:
        self.source = uuid.uuid4().bytes
        self.buffer = Buffer()
        self.findings: deque[Finding] = deque(maxlen=FINDINGS_MAX)
        self.flushing = threading.Lock()
        self.writer = BackgroundWriter(
            "lock-metrics", lambda: flush(), lambda: load().database, what="lock statistics", logger=logger
        )
        self.report: Callable[[Counters], None] | None = None


_process = _Process()


def acquired(kind: str, key: str, seconds: float, *, contended: bool) -> None:
    """Count a lock that was acquired after `seconds`; contended: an earlier try failed."""
    if _counts():
        _process.buffer.count(LockId(kind, key), waited(seconds, acquired=True, contended=contended))


def failed(kind: str, key: str, seconds: float) -> None:
    """Count a LockNotAcquired after `seconds`."""
    if _counts():
        _process.buffer.count(LockId(kind, key), waited(seconds, acquired=False))


def released(kind: str, key: str, seconds: float) -> None:
    """Count a lock that was released in time, after `seconds`."""
    if _counts():
        held = int(seconds * 1e6)
        _process.buffer.count(LockId(kind, key), {"released": 1, "held_us": held, "held_us_max": held})


def reentered(kind: str, key: str) -> None:
    """Count a holder that came back after its lock had ended: another holder may have worked meanwhile."""
    if _counts():
        _process.buffer.count(LockId(kind, key), {"reentries": 1})


def refused(refusal: Refusal) -> None:
    """Count a transaction that the database refused. Observes jobqueue.db.retry."""
    if _counts():
        lock = LockId(TRANSACTION, f"{refusal.verb} {refusal.kind.value}")
        _process.buffer.count(lock, {"contended" if refusal.redone else "failed": 1})


def found(finding: Finding) -> None:
    """Keep a finding for people; it is written with the next counters."""
    if _counts():
        _process.findings.append(finding)


def record_deadlock(sender: type, *, using: str, error: BaseException | None = None, **_: object) -> None:
    """Receiver of transaction_retried: keep a report of a deadlock where the server keeps none."""
    report = None if error is None else fault_vendor(using).diagnostics.deadlock_in(error)
    if report is not None:
        found(deadlock_finding(report))


def snapshot() -> Counters:
    """The counters of all locks since this process began."""
    return replace(_process.buffer.total)


def report_to(receiver: Callable[[Counters], None]) -> None:
    """Call `receiver` with the totals of the process after every write from now on."""
    _process.report = receiver


def flush() -> None:
    """Write the counters now; not in a transaction, which the rows would be part of. Raises database errors."""
    alias = load().database
    if in_open_transaction(alias):
        return
    # One at a time: rows are totals, and an older total must not replace a newer one.
    with _process.flushing, watched(connections[alias]):
        for window, totals in _process.buffer.pending():
            write_counters(window.number, totals, using=alias)
        _process.buffer.forget_written()
        while _process.findings:
            keep_findings([_process.findings[0]], using=alias)
            _process.findings.popleft()
    if _process.report is not None:
        _process.report(_process.buffer.total)


def close() -> None:
    """End the thread after a last write, and wait for that write for a moment."""
    _process.writer.close()


def _counts() -> bool:
    try:
        if load().lock_metrics_seconds is None:
            return False
    except WrongSettings:
        return False
    # Not in a test run, whose database must not be dropped under the session of the thread.
    if not is_test_run():
        _process.writer.start()
    return True


def _reset() -> None:
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_reset)
atexit.register(close)
