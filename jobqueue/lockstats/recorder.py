"""Counts locks and redone transactions of this process in memory; a thread of its own writes them at intervals.

Callers' threads and transactions write nothing, and every process writes rows of its own. A process that is killed
loses what it counted since the last write.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from django.db import connections

from jobqueue.conf import is_test_run, load
from jobqueue.db import fault_vendor, is_lost_connection
from jobqueue.db.background_writer import BackgroundWriter
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.redone import Refusal
from jobqueue.db.stuck_statements import watched
from jobqueue.exceptions import WrongSettings
from jobqueue.lockstats.counters import Buffer, Counters, LockId, TransactionId, waited
from jobqueue.lockstats.tables import Finding, deadlock_finding, keep_findings, write_refused, write_stats

logger = logging.getLogger("jobqueue.locks")

FINDINGS_MAX = 100


def _complain(level: int, error: BaseException) -> None:
    logger.log(level, "lock statistics could not be written: %s. They are kept for some minutes", error)


def _is_expected(error: BaseException) -> bool:
    """A lost connection is what the counters are about, and whoever lost it has logged it."""
    return is_lost_connection(error, load().database)


class _Process:
    """The state of one process; a forked process starts with an empty one."""

    def __init__(self) -> None:
        self.source = uuid.uuid4().bytes
        self.buffer = Buffer()
        self.findings: deque[Finding] = deque(maxlen=FINDINGS_MAX)
        self.flushing = threading.Lock()
        self.writer = BackgroundWriter("lock-metrics", lambda: flush(), _complain, _is_expected)
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
    """Count a transaction that the database refused. Observes jobqueue.db.redone."""
    if _counts():
        transaction = TransactionId(refusal.verb, refusal.kind.value)
        _process.buffer.count_refused(transaction, redone=refusal.redone)


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
            write_stats(_process.source, window.number, totals, using=alias)
            write_refused(_process.source, window.number, dict(window.refused), using=alias)
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
