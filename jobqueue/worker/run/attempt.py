"""One attempt of one job: while it runs, and its outcome, which the settler writes."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from django.db import connections

from jobqueue.compat import AnyTask
from jobqueue.conf import load
from jobqueue.conf.task_spec import NO_OPTIONS, TaskSpec
from jobqueue.context.job_context import JobContext
from jobqueue.db.fields import Encoded
from jobqueue.db.stuck_statements import watched
from jobqueue.exceptions import (
    Discard,
    JobCanceled,
    LockNotAcquired,
    Snooze,
    UnknownTask,
    WrongArguments,
)
from jobqueue.failures import FailureCause, describe, is_permanent, summary
from jobqueue.gates import declared
from jobqueue.log_format import one_line
from jobqueue.payload import JSON, readable
from jobqueue.signals import RunOutcome
from jobqueue.tasks import registry
from jobqueue.tasks.discovery import workers_import
from jobqueue.tasks.options import options_of
from jobqueue.tasks.results import failed_result, task_context
from jobqueue.tasks.versions import arguments
from jobqueue.transitions import Lease
from jobqueue.transitions.acking import encode_result
from jobqueue.transitions.failing import Also, cause_of
from jobqueue.worker.run.retrying import LATE_SECONDS, NextAttempt, RetriesEnded, is_too_late, next_attempt
from jobqueue.worker.shared.scoreboard import Hold, LeaseSlot

logger = logging.getLogger("jobqueue.worker")
jobs = logging.getLogger("jobqueue.jobs")

#: the runs of this process that have begun and have not ended
running: set[Attempt] = set()


class Ending(StrEnum):
    """How a run ended, before that is written to the database."""

    OK = "ok"
    FAILED = "failed"
    CANCELED = "canceled"
    SNOOZED = "snoozed"
    DISCARDED = "discarded"
    GIVEN_UP = "given up"  # not run: too late for a retry
    PARKED = "parked"
    FINISHED = "finished"  # by context.finish(), or a verb that the job called: already written


@dataclass(slots=True, eq=False)  # frozen takes three times as long to make, for every job
class Outcome:
    """The end of one run: what to write, and how long the run took."""

    lease: Lease
    ending: Ending
    run_seconds: float
    result: Encoded | None = None
    error: BaseException | None = None
    delay_seconds: float | None = None
    ack_each: bool = False
    dependency: str | None = None  # of the task; that of the row is in the lease
    retry_until: datetime | None = None  # no retry may begin later
    coroutine: bool = False  # it ran on the event loop, not in a job thread
    task: AnyTask | None = None  # None for a handler
    context: Context | None = None  # the contextvars in which it ran
    retry: bool = True  # False: the error rules out another attempt
    also: Also | None = None  # what else a failure writes
    log: str | None = None  # what a failed run has logged
    settled: RunOutcome = RunOutcome.OK  # what is already written
    finishing: bool = False  # finish() began its commit, and it is unknown whether that succeeded
    finish_result: Encoded | None = None  # the result that this commit was to store
    row_locked: bool = False  # not written because another session has locked the job's row
    problem: Exception | None = None  # why it could not be written; None: it was not tried, or its row is locked
    cut_off: bool = False  # not written because the connection was lost
    ended_at: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the run: a job may have had another run in the same process."""
        return self.lease.job_id, self.lease.fence

    @property
    def sent_chars(self) -> int:
        """The approximate length of the result, or of the error and the log, that settling sends to the database."""
        if self.ending is Ending.OK:
            return len(self.result or "")
        if self.ending is not Ending.FAILED or self.error is None:
            return 0
        return len(describe(self.error)) + len(self.log or "")

    @property
    def succeeded(self) -> bool:
        """Whether the job was done: it returned, or its finish() did. A verb that it called may have failed it."""
        return self.ending is Ending.OK or (self.ending is Ending.FINISHED and self.settled is RunOutcome.OK)

    def chosen_delay(self) -> float:
        """The wait before the next attempt, by the policy of the task or of the settings."""
        if self.delay_seconds is None:
            self.delay_seconds = load().backoff.delay_seconds(self.lease.attempt)
        return self.delay_seconds

    def slack_seconds(self, delay_seconds: float) -> float:
        """How much later than after this delay a retry may begin, so that it is not too late."""
        ends = [instant for instant in (self.retry_until, self.lease.expires_at) if instant is not None]
        if not ends:
            return math.inf
        begins = self.lease.locked_at + timedelta(seconds=self.run_seconds + delay_seconds)
        return (min(ends) - begins).total_seconds() - LATE_SECONDS

    def was_finished(self) -> None:
        """Record that the commit of its finish() succeeded."""
        self.ending, self.result, self.finishing = Ending.FINISHED, self.finish_result, False

    def note_on(self, slot: LeaseSlot) -> None:
        """Record the end on the scoreboard: the job did not kill its process, and its result need not be lost."""
        if self.ending is Ending.OK:
            slot.keep_result(self.result)
        elif self.ending is Ending.FAILED and self.error is not None:
            final = not self.retry or is_permanent(self.error)
            slot.keep_failure(summary(self.error), delay_seconds=self.delay_seconds, final=final)
        elif self.ending is Ending.SNOOZED and isinstance(self.error, Snooze):
            slot.keep_snooze(self.error.after_seconds)
        elif self.ending is Ending.DISCARDED and isinstance(self.error, Discard):
            slot.keep_discard(self.error.reason)
        else:
            slot.hold = Hold.OVER


def is_outage(outcome: Outcome) -> bool:
    """Whether the run failed because of its dependency: another cause says nothing about it."""
    error = outcome.error
    if outcome.ending is not Ending.FAILED or error is None or declared.needed_by(outcome.lease) is None:
        return False
    return cause_of(error, outcome.lease.task) == FailureCause.DEPENDENCY


def outages_of(outcomes: Iterable[Outcome]) -> list[str]:
    """The service of each of these runs that failed because of it."""
    # Most runs have no error: they cost no call.
    failed = [outcome for outcome in outcomes if outcome.error is not None and is_outage(outcome)]
    found = [declared.needed_by(outcome.lease) for outcome in failed] if failed else []
    return [name for name in found if name is not None]


class Attempt:
    """A current run: an exception raised in its `with` block becomes its outcome."""

    def __init__(self, lease: Lease, asked_to_stop: Callable[[], bool]) -> None:
        self.begun = time.monotonic()
        self.lease, self.context = lease, JobContext(lease, asked_to_stop)
        self.task: AnyTask | None = None
        self.options: TaskSpec = NO_OPTIONS  # of the task, or the job's own
        self.result: Encoded | None = None
        self.error: BaseException | None = None
        self.misfit = False  # the arguments are not those of the function, which no other attempt changes
        self.thread = threading.get_ident()
        self.coroutine: asyncio.Task[Any] | None = None  # what runs it, if it is a coroutine
        self.shared = False  # the error ended a call of several jobs, and may be about another one of them

    def find(self) -> Callable[[JobContext], Any]:
        """The function to call. Raises UnknownTask, or PayloadError for a payload that cannot be read or passed."""
        try:
            self.task, call = _find(self.lease)
        except WrongArguments:
            self.misfit = True
            raise
        self.options = options_of(self.task, self.lease.options)
        if is_too_late(self.options, self.lease):
            raise RetriesEnded(f"retry_until_seconds of {self.lease.task} had passed when its retry was to begin")
        return call

    def returned(self, value: JSON) -> None:
        """Encode the value that the body returned. Raises ResultError."""
        if not self.context.finished:
            self.result = encode_result(value)

    def begin(self) -> None:
        """Note that the run begins. Call end() in any case."""
        running.add(self)
        if jobs.isEnabledFor(logging.DEBUG):
            jobs.debug("start   %s", one_line(f"{self}, try {self.lease.attempt}/{self.lease.max_attempts}"))

    def end(self) -> None:
        running.discard(self)

    def __str__(self) -> str:
        return f"{self.lease.queue}  {self.lease.task or 'handler'}  #{self.lease.job_id}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        # SystemExit and KeyboardInterrupt too: a job must not end its worker.
        self.error = error
        return True

    def write_progress(self) -> None:
        """Write the last progress; an error here does not change the outcome."""
        try:
            # Outside the body, and so outside its time limits.
            with watched(connections[self.lease.using]):
                self.context.tell_progress()
        except Exception:
            logger.exception("the last progress of job %d could not be written", self.lease.job_id)

    def ending(self) -> Ending:
        """The ending that follows from the error."""
        # After finish() the job is DONE; later errors can only be reported.
        if self.context.finished:
            return Ending.FINISHED
        # isinstance() would ask for __class__, which may be a property that raises.
        kind = type(self.error)
        # For all jobs of a call: a Snooze that only one of them may have raised costs the others no attempt.
        if issubclass(kind, Snooze):
            return Ending.SNOOZED
        if issubclass(kind, Discard) and not self.shared:
            return Ending.DISCARDED
        if issubclass(kind, RetriesEnded):
            return Ending.GIVEN_UP
        if issubclass(kind, UnknownTask | LockNotAcquired) and not self.shared:
            return Ending.PARKED
        if issubclass(kind, JobCanceled) and not self.shared:
            return Ending.CANCELED
        return Ending.OK if self.error is None else Ending.FAILED

    def _next(self, run_seconds: float) -> NextAttempt:
        error, task = self.error, self.task
        # Another end has no next attempt, so neither rules nor back-off are asked.
        if error is None or self.ending() not in (Ending.FAILED, Ending.SNOOZED):
            return NextAttempt()
        result = partial(failed_result, task, self.lease, error)
        try:
            found = next_attempt(self.options, self.lease, error, run_seconds, result)
        except BaseException as problem:  # an error of this job must not become that of the others of its call
            words = "job %d waits as JOBQUEUE configures, not by the policy of its task\n%s"
            logger.error(words, self.lease.job_id, describe(problem))
            found = NextAttempt()
        return found._replace(retry=False) if self.misfit else found

    def outcome(self, context: Context | None = None, *, coroutine: bool = False) -> Outcome:
        run_seconds = time.monotonic() - self.begun
        following = self._next(run_seconds)
        outcome = Outcome(
            self.lease,
            self.ending(),
            run_seconds,
            self.context.result if self.context.finished else self.result,
            self.error,
            following.delay_seconds,
            dependency=self.options.dependency,
            retry_until=following.until,
            ack_each=self.options.ack_each or load().queue_ack_each(self.lease.queue),
            coroutine=coroutine,
            task=self.task,
            context=context,
            retry=following.retry,
            also=following.also,
            log=self.context.log.text() if self.error is not None and self.context.log is not None else None,
            settled=self.context.settled,
            finishing=self.context.finishing and not self.context.finished,
            finish_result=self.context.result,
        )
        # Its traceback has frames that hold this attempt: only a full garbage collection would free what they hold.
        self.error = None
        return outcome


def _find(lease: Lease) -> tuple[AnyTask | None, Callable[[JobContext], object]]:
    if lease.task is None:
        handler = registry.find_handler(lease.queue)
        if handler is None:
            raise UnknownTask(f"no @handler for queue {lease.queue!r} in this worker")
        payload = readable(lease.payload)
        return None, lambda context: handler.func(payload)
    task = registry.find_task(lease.task)
    if task is None:
        raise UnknownTask(f"task {lease.task!r} is not known to this worker; {workers_import(lease.task)}")
    args, kwargs = arguments(task, readable(lease.payload))
    if task.takes_context:
        return task, lambda context: task.func(task_context(task, lease, context), *args, **kwargs)
    return task, lambda context: task.func(*args, **kwargs)
