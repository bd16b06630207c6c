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
from typing import Any, NamedTuple

from django.db import connections

from jobqueue.backoff import retry_after, wait_seconds
from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON, readable
from jobqueue.conf import load
from jobqueue.conf.task_spec import NO_OPTIONS, TaskSpec
from jobqueue.context.job_context import JobContext
from jobqueue.db.fields import Encoded
from jobqueue.db.time_limit import watched
from jobqueue.exceptions import (
    JobCanceled,
    JobQueueError,
    LockNotAcquired,
    PayloadError,
    Retry,
    UnknownTask,
    WrongArguments,
)
from jobqueue.failures import FailureCause, describe, is_permanent, summary
from jobqueue.gates import declared
from jobqueue.log_format import one_line
from jobqueue.producer.life import after_run, continues, first_due
from jobqueue.requested import Requested, requested_by
from jobqueue.signals import RunOutcome
from jobqueue.tasks import registry
from jobqueue.tasks.discovery import workers_import
from jobqueue.tasks.options import may_retry, options_of
from jobqueue.tasks.results import failed_result, task_context
from jobqueue.tasks.versions import arguments
from jobqueue.transitions import Lease
from jobqueue.transitions.acking import encode_result
from jobqueue.transitions.failing import Also, cause_of
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
    REQUESTED = "requested"  # one of REQUESTED_ENDS
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
    requested: Requested | None = None  # of a run with the ending REQUESTED
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

    @property
    def gives_back(self) -> bool:
        """Whether the job is to run again without using an attempt."""
        again = self.requested is not None and self.requested.end.again
        return self.ending is Ending.PARKED or (self.ending is Ending.REQUESTED and again)

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
        elif self.ending is Ending.REQUESTED and self.requested is not None:
            slot.keep_requested(self.requested)
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

    @property
    def requested(self) -> Requested | None:
        """The end that the job has requested by its error."""
        found = requested_by(self.error)
        # For all jobs of a call: a Snooze that only one of them may have raised costs the others no attempt.
        return None if found is not None and self.shared and not found.end.again else found

    def ending(self) -> Ending:
        """The ending that follows from the error."""
        # After finish() the job is DONE; later errors can only be reported.
        if self.context.finished:
            return Ending.FINISHED
        if self.error is None:
            return Ending.OK
        if self.requested is not None:
            return Ending.REQUESTED
        # isinstance() would ask for __class__, which may be a property that raises.
        kind = type(self.error)
        if issubclass(kind, RetriesEnded):
            return Ending.GIVEN_UP
        if issubclass(kind, UnknownTask | LockNotAcquired) and not self.shared:
            return Ending.PARKED
        if issubclass(kind, JobCanceled) and not self.shared:
            return Ending.CANCELED
        return Ending.FAILED

    def ended_as(self) -> str:
        """The ending by its name; of a requested one, the name of the outcome."""
        ending, requested = self.ending(), self.requested
        return requested.end.outcome if ending is Ending.REQUESTED and requested is not None else ending

    def _next(self, ending: Ending, requested: Requested | None, run_seconds: float) -> NextAttempt:
        error, task = self.error, self.task
        # Another end has no next attempt, so neither rules nor back-off are asked.
        if error is None or ending not in (Ending.FAILED, Ending.REQUESTED):
            return NextAttempt()
        result = partial(failed_result, task, self.lease, error)
        try:
            if requested is None:
                found = next_attempt(self.options, self.lease, error, run_seconds, result)
            elif requested.delay_seconds is None:
                found = NextAttempt()
            else:
                found = next_run(self.options, self.lease, requested.delay_seconds)
        except BaseException as problem:  # an error of this job must not become that of the others of its call
            words = "job %d waits as JOBQUEUE configures, not by the policy of its task\n%s"
            logger.error(words, self.lease.job_id, describe(problem))
            found = NextAttempt(None if requested is None else requested.delay_seconds)
        return found._replace(retry=False) if self.misfit else found

    def outcome(self, context: Context | None = None, *, coroutine: bool = False) -> Outcome:
        run_seconds = time.monotonic() - self.begun
        ending = self.ending()
        requested = self.requested if ending is Ending.REQUESTED else None
        following = self._next(ending, requested, run_seconds)
        outcome = Outcome(
            self.lease,
            ending,
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
            requested=requested,
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


# A retry is claimed a little later than it falls due.
LATE_SECONDS = 5.0


class RetriesEnded(JobQueueError):
    """It is too late for this retry: the job ends FAILED with its last cause, and its function is not called."""


class NextAttempt(NamedTuple):
    """What follows a failed attempt."""

    delay_seconds: float | None = None  # None: JOBQUEUE's back-off
    retry: bool = True
    also: Also | None = None
    until: datetime | None = None  # the latest begin that the policy allows


def next_attempt(
    options: TaskSpec,
    lease: Lease,
    error: BaseException,
    run_seconds: float,
    task_result: Callable[[], object],
) -> NextAttempt:
    """What follows `error`, which ended the attempt after `run_seconds`."""
    delay = _delay(options, lease, error, task_result)
    # isinstance() would ask for __class__, which may be a property that raises.
    retry = issubclass(type(error), Retry) or may_retry(options, error)
    limit, until = options.retry_until_seconds, None
    if limit is not None and retry:
        if delay is None:
            delay = load().backoff.delay_seconds(lease.attempt)
        begins = lease.locked_at + timedelta(seconds=run_seconds + delay)
        until = first_due(lease).instant + timedelta(seconds=limit)
        retry = begins <= until
    return NextAttempt(delay, retry, _also(options, lease, failed=True) if retry else None, until)


def next_run(options: TaskSpec, lease: Lease, delay_seconds: float) -> NextAttempt:
    """What follows a run that has requested another one, without using an attempt."""
    return NextAttempt(delay_seconds, also=_also(options, lease, failed=False))


def is_too_late(options: TaskSpec, lease: Lease) -> bool:
    """Whether this run is a retry that begins after the task's retry_until_seconds."""
    limit = options.retry_until_seconds
    if limit is None:
        return False
    due = first_due(lease)
    if continues(lease):
        return False  # it continues a run that began in time
    # The first run of a life is no retry, however long it had to wait for a worker.
    return lease.attempt > due.attempts + 1 and lease.locked_at > due.instant + timedelta(seconds=limit)


def needs(lease: Lease) -> tuple[str | None, float]:
    """The dependency of a retry that was claimed, and for how long it may be given back without being too late then."""
    try:
        options = options_of(registry.find_task(lease.task) if lease.task is not None else None, lease.options)
    except PayloadError:
        return lease.dependency, 0.0
    ends = [] if lease.expires_at is None else [lease.expires_at]
    limit = options.retry_until_seconds
    if limit is not None and (due := first_due(lease)).kept:
        ends.append(due.instant + timedelta(seconds=limit))
    slack = (min(ends) - lease.locked_at).total_seconds() - LATE_SECONDS if ends else math.inf
    return lease.dependency or options.dependency, slack


def _delay(options: TaskSpec, lease: Lease, error: BaseException, task_result: Callable[[], object]) -> float | None:
    if is_permanent(error):
        return None
    if issubclass(type(error), Retry) and (asked := getattr(error, "after_seconds", None)) is not None:
        return float(asked)
    backoff, delay = options.backoff, None
    if backoff is not None:
        try:
            delay = wait_seconds(backoff, lease.attempt, error, task_result)
        except BaseException:
            logger.exception("backoff of task %s failed; job %d waits as JOBQUEUE configures", lease.task, lease.job_id)
    asked = None if callable(backoff) else retry_after(error)
    if asked is None:
        return delay
    # The longer one: a service that asks for a second each time would use up the attempts at once.
    return max(asked, load().backoff.delay_seconds(lease.attempt) if delay is None else delay)


def _also(options: TaskSpec, lease: Lease, *, failed: bool) -> Also | None:
    after, queue = options.move_after, None
    if failed and after is not None and lease.attempt >= after and lease.ordering_key is None:
        moved_to = options.move_to
        queue = moved_to if moved_to != lease.queue else None
    kept = None if options.retry_until_seconds is None else after_run(lease, failed=failed)
    return Also(queue, kept) if queue or kept else None
