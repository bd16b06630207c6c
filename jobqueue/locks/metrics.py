"""How the locks of this process fare: counted in memory, written down every few seconds by a thread of its own.

Nothing is written in a caller's thread or transaction, and no row is written by two processes. What was counted since
the last write is lost with a process that is killed.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from jobqueue.conf import load
from jobqueue.db.cutting import watched
from jobqueue.db.open_transaction import in_open_transaction
from jobqueue.locks.history import Finding, keep_findings, write_stats
from jobqueue.locks.tally import Book, Tally

logger = logging.getLogger("jobqueue.locks")

FLUSH_SECONDS = 10.0
#: how long the end of a process waits for its last figures to be written
LAST_SECONDS = 2.0
FINDINGS_MAX = 100


class _Process:
    """What one process has counted; a forked one begins anew."""

    def __init__(self) -> None:
        self.source = uuid.uuid4().bytes
        self.book = Book()
        self.findings: deque[Finding] = deque(maxlen=FINDINGS_MAX)
        self.flushing = threading.Lock()
        self.starting = threading.Lock()
        self.thread: threading.Thread | None = None
        self.over = threading.Event()
        self.failed = False
        self.report: Callable[[Tally], None] | None = None


_process = _Process()


def acquired(kind: str, key: str, seconds: float, *, contended: bool) -> None:
    """Count a lock that was got after `seconds`; contended: a first try was in vain."""
    if _counts():
        _process.book.acquired(kind, key, seconds, contended=contended)


def failed(kind: str, key: str, seconds: float) -> None:
    """Count a LockNotAcquired after `seconds`."""
    if _counts():
        _process.book.failed(kind, key, seconds)


def released(kind: str, key: str, seconds: float) -> None:
    """Count a lock that was given back in time, held for `seconds`."""
    if _counts():
        _process.book.released(kind, key, seconds)


def reentered(kind: str, key: str) -> None:
    """Count a holder that came back to a lock which had ended: it may have worked beside the next one."""
    if _counts():
        _process.book.reentered(kind, key)


def found(finding: Finding) -> None:
    """Keep something that a person should see; written with the next figures."""
    if _counts():
        _process.findings.append(finding)


def snapshot() -> Tally:
    """The sums over all locks since this process began."""
    return replace(_process.book.total)


def report_to(receiver: Callable[[Tally], None]) -> None:
    """From now on call `receiver` with the sums whenever they are written."""
    _process.report = receiver


def flush() -> None:
    """Write down what was counted, now. Not inside a transaction: it would be part of it. Raises database errors."""
    alias = load().database
    if in_open_transaction(alias):
        return
    # One at a time: rows are totals, and an older one must not come after a newer one.
    with _process.flushing, watched(connections[alias]):
        for period, lines in _process.book.pending():
            write_stats(_process.source, period.number, lines, using=alias)
        _process.book.forget_written()
        while _process.findings:
            keep_findings([_process.findings[0]], using=alias)
            _process.findings.popleft()
    if _process.report is not None:
        _process.report(_process.book.total)


def close() -> None:
    """Write down what is left and end the thread; waits for up to LAST_SECONDS."""
    thread = _process.thread
    if thread is not None:
        _process.over.set()
        thread.join(LAST_SECONDS)


def _counts() -> bool:
    try:
        if load().lock_metrics_seconds is None:
            return False
    except ImproperlyConfigured:
        return False
    if _process.thread is None:
        _start()
    return True


def _start() -> None:
    """Not while tests run: a thread's session would outlive their database."""
    if hasattr(mail, "outbox"):
        return
    process = _process
    with process.starting:
        if process.thread is None:
            thread = threading.Thread(target=_run, args=(process,), name="lock-metrics", daemon=True)
            process.thread = thread
            try:
                thread.start()
            except RuntimeError:
                # No room for a thread: counted all the same, and tried again.
                process.thread = None


def _run(process: _Process) -> None:
    """A thread's life: every session it needs is opened for one write, so that none idles."""
    while True:
        over = process.over.wait(FLUSH_SECONDS * random.uniform(0.8, 1.2))
        try:
            flush()
            process.failed = False
        except Exception as error:
            # Said once; the figures are kept, up to a bound, until they can be written.
            level = logging.DEBUG if process.failed or over else logging.WARNING
            logger.log(level, "the figures about locks could not be written: %s. They are kept for a while", error)
            process.failed = True
        finally:
            connections.close_all()
        if over:
            return


def _begin_anew() -> None:
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(close)
