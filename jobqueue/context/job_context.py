"""The context of a running job: what it can ask about itself, finish(), and the lines it logs.

The transitions are imported inside the methods: `from jobqueue import current_job` must work before apps are ready.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from jobqueue.base.compat import signals
from jobqueue.base.payload import JSON
from jobqueue.conf import load
from jobqueue.context.guards import raise_swallowed_errors, refuse_commits, refuse_writes_elsewhere
from jobqueue.context.progress import Reporter, new_progress
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_manual_transaction, in_open_transaction
from jobqueue.exceptions import InsideTransaction, SoftTimeout, WrongDatabase
from jobqueue.failures import storable
from jobqueue.middleware.chain import CONTEXT
from jobqueue.signals import RunOutcome

if TYPE_CHECKING:
    from jobqueue.context.running_group import Parents, RunningGroup
    from jobqueue.db.fields import Encoded
    from jobqueue.transitions import Lease


_current: ContextVar[JobContext | None] = ContextVar("jobqueue_current_job", default=None)
LINE_BYTES = 2_000
LOG_BYTES = 16_384
_formatter = logging.Formatter()


@dataclass(slots=True)
class JobContext:
    """The running attempt: job_id, attempt, queue, token, fence, lease_until, should_stop, heartbeat(), progress() and
    finish().
    """

    lease: Lease
    asked_to_stop: Callable[[], bool] = lambda: False
    finishing: bool = False  # a finish() has reached its commit
    finished: bool = False  # and the commit succeeded; or the job called a verb that has settled it
    settled: RunOutcome = RunOutcome.OK  # how that verb has settled it
    result: Encoded | None = None  # what finish() has stored, as JSON
    log: JobLog | None = None  # None until the first line
    _until: datetime | None = None
    _reporter: Reporter | None = None
    _group: RunningGroup | None = None

    @property
    def job_id(self) -> int:
        return self.lease.job_id

    @property
    def attempt(self) -> int:
        """1 for the first run; failed and lost runs count, snoozed and released ones do not."""
        return self.lease.attempt

    @property
    def queue(self) -> str:
        return self.lease.queue

    @property
    def token(self) -> bytes:
        """The lease's token, 16 bytes."""
        return self.lease.token

    @property
    def fence(self) -> int:
        """Grows with every claim of this job: pass it to the systems you write to, which then refuse older ones."""
        return self.lease.fence

    @property
    def lease_until(self) -> datetime:
        """When the lease ends as last known here, aware UTC by the database's clock; the worker keeps renewing it."""
        return self._until or self.lease.lock_until

    @property
    def tick(self) -> datetime | None:
        """The tick of the schedule that added the job, aware UTC; None for other jobs. A retry has the same tick."""
        options = self.lease.options
        found = options.get("tick") if isinstance(options, dict) else None
        return datetime.fromisoformat(found) if isinstance(found, str) else None

    @property
    def context(self) -> dict[str, JSON]:
        """What JOBQUEUE["MIDDLEWARE"] has stored with the job; empty for most jobs. Changes are not stored."""
        options = self.lease.options
        found = options.get(CONTEXT) if isinstance(options, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def group(self) -> RunningGroup | None:
        """The group that the job is a member or a callback of; None for other jobs."""
        from jobqueue.context.running_group import group_of_job

        if self._group is None:
            self._group = group_of_job(self.lease)
        return self._group

    @property
    def parents(self) -> Parents:
        """The results of the parents of a node of a workflow, by the names of the nodes; empty for other jobs."""
        from jobqueue.context.running_group import Parents

        return Parents(self.lease.job_id, self.lease.using)

    @property
    def should_stop(self) -> bool:
        """True if the job should stop: the worker is stopping, the job was asked to cancel, or the lease was lost."""
        return self.asked_to_stop()

    def heartbeat(self) -> datetime:
        """Renew the lease now; returns its new end. Raises LeaseLost. Workers do this every quarter of a lease."""
        from jobqueue import transitions

        self._until = transitions.heartbeat(self.lease, lease_seconds=self.lease.lease_seconds)
        return self._until

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report progress: `done` of `total`, in any unit, and a note of up to 500 bytes.

        Cheap: written at most once a second, and the last report at the latest when the job ends; not while a
        transaction is open, nor on an event loop (use aprogress there). Raises InvalidType and InvalidValue; database
        errors are logged, and nothing is raised when the lease was lost.
        """
        if self._reporter is None:
            self._reporter = Reporter(self.lease)
        self._reporter.report(new_progress(done, total, note))

    async def aprogress(self, done: float, total: float | None = None, note: str = "") -> None:
        """progress() for coroutines."""
        await sync_to_async(self.progress)(done, total, note)

    @property
    def untold(self) -> bool:
        """True if the last progress report is not written yet."""
        return self._reporter is not None and self._reporter.waiting is not None

    def tell_progress(self) -> None:
        """Write the last progress report if it is not written yet."""
        if self._reporter is not None and not self.finished:
            self._reporter.write()

    @contextmanager
    def finish(self, result: JSON = None, *, using: str | None = None) -> Iterator[None]:
        """Complete the job in the same commit as the writes of the block: exactly-once effects in this database.

        Opens one transaction on the queue's database and locks the job by its token. Raises LeaseLost before the block
        when the lease is lost, WrongDatabase if `using` names another database or the block writes to one,
        InsideTransaction where autocommit was turned off by hand, NotSupported for a statement of the block that would
        commit by itself. An exception in the block rolls all of it back, and the job fails as usual.
        """
        from jobqueue import transitions
        from jobqueue.transitions.acking import encode_result
        from jobqueue.transitions.leases import held, lost

        alias = self.lease.using
        if using is not None and using != alias:
            raise WrongDatabase(
                f"finish() commits on {alias!r}, where the queue is; writes to {using!r} cannot be in that commit. "
                "Nothing was written; make the writes idempotent instead, or pass context.fence to them."
            )
        stored = encode_result(result)
        if in_manual_transaction(connections[alias]):
            raise InsideTransaction(
                f"finish() commits the job's end, but autocommit is off on {alias!r}, so nothing would be committed. "
                "Nothing was written; turn autocommit on again first, and begin transactions with transaction.atomic()."
            )
        # On SQLite it takes the write lock now: a transaction that reads first and writes later is refused then.
        with vendor(alias).locks.timed_transaction(connections[alias], None):
            if not held(self.lease).select_for_update().values_list("pk", flat=True):
                raise lost(self.lease, "finish")
            with (
                refuse_writes_elsewhere(alias, "finish()"),
                refuse_commits(alias, "finish()"),
                raise_swallowed_errors(alias),
            ):
                yield
            self.tell_progress()
            transitions.ack(self.lease, result=stored)
            # Whatever raises from here on, the commit may have happened.
            self.result, self.finishing = stored, True
        self._finish_with(alias)

    def was_settled(self, lease: Lease, outcome: RunOutcome) -> None:
        """Record that a verb which the job called has ended `lease`, if it is the job's own."""
        if (lease.job_id, lease.fence) == (self.lease.job_id, self.lease.fence):
            self.finished, self.settled = True, outcome

    def _finish_with(self, alias: str) -> None:
        finish = partial(setattr, self, "finished", True)
        if in_open_transaction(alias):
            # Inside the job's own transaction nothing is finished before that commits, and it may roll back.
            transaction.on_commit(finish, using=alias)
        else:
            finish()


def current_job() -> JobContext | None:
    """The context of the job this code runs in; None outside a job."""
    return _current.get()


class JobScope:
    """A `with` block in which `context` is the current job of this thread or coroutine."""

    # Not a @contextmanager, which takes four times as long, for every job.

    __slots__ = ("_context", "_mark")

    def __init__(self, context: JobContext) -> None:
        self._context = context

    def __enter__(self) -> JobContext:
        self._mark = _current.set(self._context)
        return self._context

    def __exit__(self, *raised: object) -> None:
        _current.reset(self._mark)


_keeps_lines = False


def keep_log_lines() -> None:
    """Keep every log record that a job of this process makes with the job's context, whatever handles the record."""
    global _keeps_lines
    if _keeps_lines:
        return
    _keeps_lines = True
    make = logging.getLogRecordFactory()

    def make_and_keep(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = make(*args, **kwargs)
        job = current_job()
        # Not the lines that Django logs around each task.
        if job is not None and record.name != signals.logger.name:
            _keep(job, record)
        return record

    logging.setLogRecordFactory(make_and_keep)


def _keep(job: JobContext, record: logging.LogRecord) -> None:
    try:
        if job.log is None:
            lines = load().log_lines
            if not lines:
                return
            job.log = JobLog(lines)
        job.log.add(record)
    except SoftTimeout:
        raise
    except Exception:
        # Arguments that do not fit the message: the record's handler reports them.
        return


class JobLog:
    """The newest lines of one attempt."""

    def __init__(self, lines: int) -> None:
        self._lines: deque[str] = deque(maxlen=lines)
        self._count = 0

    def add(self, record: logging.LogRecord) -> None:
        stamp = time.strftime("%H:%M:%S", time.gmtime(record.created))
        line = f"{stamp}.{int(record.msecs):03d} {record.levelname} {record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n" + _formatter.formatException(record.exc_info)
        self._lines.append(storable(line, LINE_BYTES))
        self._count += 1

    def text(self) -> str:
        """The newest lines, up to LOG_BYTES; the first line says how many are left out."""
        kept: deque[str] = deque()
        room = LOG_BYTES
        for line in reversed(self._lines):
            room -= len(line.encode()) + 1
            if room < 0:
                break
            kept.appendleft(line)
        left_out = self._count - len(kept)
        if left_out:
            kept.appendleft(f"... {left_out} earlier lines left out ...")
        return "\n".join(kept)
