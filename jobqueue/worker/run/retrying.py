"""What follows a failed attempt by the policy of its task: another one or none, when, and in which queue."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from jobqueue.backoff import retry_after, wait_seconds
from jobqueue.conf import load
from jobqueue.conf.task_spec import TaskSpec
from jobqueue.exceptions import JobQueueError, PayloadError, Retry
from jobqueue.failures import is_permanent
from jobqueue.producer.life import after_run, continues, first_due
from jobqueue.tasks import registry
from jobqueue.tasks.options import may_retry, options_of
from jobqueue.transitions import Lease
from jobqueue.transitions.failing import Also

logger = logging.getLogger("jobqueue.worker")

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
