"""Counts how jobs end, and how long runs took, in the memory of one process; a thread of its own writes the sums.

No thread that ends jobs waits for a row of statistics. Only processes that call start() or recording() count: those of
workers, and reap_leases. A process that is killed loses what it counted since its last write, up to FLUSH_SECONDS, so
all counts are lower bounds.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Literal, TypeAlias

from django.db import Error, connections, transaction

from jobqueue.db.background_writer import BackgroundWriter
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.clock import read_now
from jobqueue.db.time_limit import watched
from jobqueue.db.upsert import digest, write_rows
from jobqueue.exceptions import DatabaseBusy, OutcomeUnknown
from jobqueue.models import Job, JobStat
from jobqueue.stats.ends import COLUMNS, Ends, Kind
from jobqueue.transitions import verb as verbs
from jobqueue.transitions.leases import Lease
from jobqueue.transitions.verb import JobRef, Written

logger = logging.getLogger("jobqueue.worker")
Span = JobStat.Span

#: the columns of JobStat that count ends; each end is in one of them
End: TypeAlias = Literal["done", "retried", "dead", "canceled"]
#: most pairs of queue and task that a process counts between two writes; more are counted together as OTHERS
KINDS_MAX = 2000
OTHERS = Kind("", "")
#: how long a write without an answer is repeated; the roll-up leaves rows alone for a minute longer than that
REPEAT_SECONDS = 240.0
#: by verb and new status, what is counted; CANCELED counts whatever the verb is
_ENDS: dict[tuple[str, Job.Status], End] = {
    ("ack", Job.Status.DONE): "done",
    ("fail", Job.Status.READY): "retried",
    ("fail", Job.Status.FAILED): "dead",
    ("reap", Job.Status.READY): "retried",
    ("reap", Job.Status.FAILED): "dead",
}


class Buffer:
    """What a process has counted since it last took the counts out. Any thread may count."""

    def __init__(self) -> None:
        # Reentrant: a signal handler or a finalizer may count while this thread does.
        self._lock = threading.RLock()
        self._counts: dict[Kind, Ends] = {}

    def count_ends(self, ends: Mapping[tuple[Kind, End], int], *, lost: bool) -> None:
        """Count jobs by how they ended; `lost`: their leases ran out."""
        with self._lock:
            for (kind, end), number in ends.items():
                counts = self._of(kind)
                setattr(counts, end, getattr(counts, end) + number)
                if lost and end in ("retried", "dead"):
                    counts.lost += number

    def count_run(self, kind: Kind, wait_seconds: float, run_seconds: float) -> None:
        """Count the times of one run."""
        with self._lock:
            self._of(kind).add_run(wait_seconds, run_seconds)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been counted since the last take()."""
        return not self._counts

    def take(self) -> dict[Kind, Ends]:
        """What has been counted since the last call."""
        with self._lock:
            found, self._counts = self._counts, {}
        return found

    def _of(self, kind: Kind) -> Ends:
        found = self._counts.get(kind)
        if found is None:
            counted_as = kind if len(self._counts) < KINDS_MAX else OTHERS
            found = self._counts.setdefault(counted_as, Ends())
        return found


class _Window:
    """The sums of one minute of this process, as they are written or being written."""

    def __init__(self, number: int, begins_at: datetime) -> None:
        self.number, self.begins_at, self.begun = number, begins_at, time.monotonic()
        self.sums: dict[Kind, Ends] = {}
        self.of_queues: dict[str, Ends] = {}
        #: what the last write contained, until it is surely written
        self.unwritten: dict[Kind, Ends] = {}

    def add(self, taken: dict[Kind, Ends]) -> None:
        """Add what a write is to contain."""
        self.unwritten = taken
        for kind, counts in taken.items():
            self.sums.setdefault(kind, Ends()).add(counts)
            self.of_queues.setdefault(kind.queue, Ends()).add(counts)


class Recorder:
    """What this process counts for one database alias."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._source = uuid.uuid4().bytes
        self._buffer = Buffer()
        self._flushing = threading.Lock()
        self._window: _Window | None = None
        self._next = 0
        self.writes_by_thread = False
        self.writer = BackgroundWriter(
            "job-statistics", self.flush, lambda: using, what="job statistics", logger=logger
        )

    def note(self, verb: str, written: Written) -> None:
        """Count what a verb has made of jobs; in a transaction, with its commit. Called by run_verb()."""
        if self.writes_by_thread:
            # Again, if the system had no room for the thread before.
            self.writer.start()
        for status, jobs in written.items():
            end = "canceled" if status == Job.Status.CANCELED else _ENDS.get((verb, status))
            if end is None:
                continue
            ends = Counter((_kind(job), end) for job in jobs if job.using == self.using)
            count = partial(self._buffer.count_ends, ends, lost=verb == "reap")
            if in_open_transaction(self.using) and connections[self.using].in_atomic_block:
                transaction.on_commit(count, using=self.using)
            else:
                count()

    def count_run(self, lease: Lease, run_seconds: float) -> None:
        """Count the times of one run that has ended and is written."""
        wait_seconds = (lease.locked_at - lease.run_at).total_seconds()
        self._buffer.count_run(_kind(lease), wait_seconds, run_seconds)

    def flush(self) -> None:
        """Write what was counted. What cannot be written is kept. Raises database errors."""
        with self._flushing, watched(connections[self.using]):
            self._write_again()
            if self._buffer.is_empty:
                return
            # Before the counts are taken out, which an error would lose.
            now = read_now(self.using)
            if taken := self._buffer.take():
                self._write(self._window_at(now), taken)

    def try_flush(self) -> None:
        """flush(), and log what it raises."""
        try:
            self.flush()
        except (Error, DatabaseBusy, OutcomeUnknown) as error:
            logger.warning("job statistics could not be written: %s. They are kept and written later", error)

    def _write_again(self) -> None:
        """Repeat a write whose outcome is unknown, unless the roll-up could have counted its rows by now."""
        window = self._window
        if window is None or not window.unwritten:
            return
        if time.monotonic() - window.begun > REPEAT_SECONDS:
            lost = sum(counts.total for counts in window.unwritten.values())
            logger.warning("%d ends are missing in the statistics: it is unknown whether they were written", lost)
            self._window = None
            return
        self._write_rows(window)

    def _window_at(self, now: datetime) -> _Window:
        """The window of this minute by the clock of the server."""
        minute = now.replace(second=0, microsecond=0)
        window = self._window
        if window is None or window.begins_at != minute or time.monotonic() - window.begun > REPEAT_SECONDS / 2:
            window = self._window = _Window(self._next, minute)
            self._next += 1
        return window

    def _write(self, window: _Window, taken: dict[Kind, Ends]) -> None:
        window.add(taken)
        self._write_rows(window)

    def _write_rows(self, window: _Window) -> None:
        queues = sorted({kind.queue for kind in window.unwritten})
        rows = [self._row(window, Span.PROCESS, kind, window.sums[kind]) for kind in sorted(window.unwritten)]
        rows += [self._row(window, Span.QUEUE_PROCESS, Kind(queue, ""), window.of_queues[queue]) for queue in queues]
        # In one transaction, so that tasks and queues count the same ends.
        write_rows(rows, COLUMNS, using=self.using)
        window.unwritten = {}

    def _row(self, window: _Window, span: Span, kind: Kind, ends: Ends) -> JobStat:
        key = digest(self._source, str(window.number), str(span.value), *kind)
        return JobStat(id=key, span=span, begins_at=window.begins_at, **kind._asdict(), **ends.columns())


def _kind(job: Lease | JobRef) -> Kind:
    return Kind(job.queue, job.task or "")


_recorder: Recorder | None = None


def start(using: str) -> None:
    """Count in this process from now on, and write the sums by a thread."""
    recorder = _begin(using)
    recorder.writes_by_thread = True
    recorder.writer.start()


def close() -> None:
    """End the thread after a last write, and wait for that write for a moment."""
    if _recorder is not None:
        _recorder.writer.close()


def count_run(lease: Lease, run_seconds: float) -> None:
    """Count the times of one run, if this process counts."""
    if _recorder is not None and lease.using == _recorder.using:
        _recorder.count_run(lease, run_seconds)


@contextmanager
def recording(using: str) -> Iterator[Recorder]:
    """A block in which this process counts; without a thread: the caller calls flush(), which the end does too."""
    recorder = _begin(using)
    try:
        yield recorder
    finally:
        _reset()
        recorder.try_flush()


def _begin(using: str) -> Recorder:
    global _recorder
    _recorder = Recorder(using)
    verbs.observe(_recorder.note)
    return _recorder


def _reset() -> None:
    global _recorder
    _recorder = None
    verbs.observe(None)


# A forked process counts nothing until it begins by itself.
os.register_at_fork(after_in_child=_reset)
