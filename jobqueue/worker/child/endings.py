"""The verb that writes the end of one run, by how the run ended."""

from __future__ import annotations

import random
from contextlib import suppress

from jobqueue import transitions
from jobqueue.exceptions import Discard, JobLost, LockNotAcquired, ResultError, Snooze
from jobqueue.failures import is_permanent
from jobqueue.gates.breaker import BreakerOpen
from jobqueue.models import Job
from jobqueue.signals import RunOutcome
from jobqueue.transitions.failing import give_up
from jobqueue.transitions.snoozing import discard_run, snooze_run
from jobqueue.worker.child import parked
from jobqueue.worker.run.attempt import Ending, Outcome

# For a lock that was not free.
LOCKED_SECONDS = 5.0
#: status of the job after a failed run -> outcome that attempt_ended reports
AFTER_FAILURE = {
    Job.Status.READY: RunOutcome.RETRY,
    Job.Status.CANCELED: RunOutcome.CANCELED,
    Job.Status.FAILED: RunOutcome.DEAD,
}


def write_ending(outcome: Outcome, again: bool) -> RunOutcome:
    """Write it with one verb; returns the outcome that attempt_ended reports. Raises LeaseLost."""
    lease, error = outcome.lease, outcome.error
    if outcome.ending is Ending.FINISHED:
        return outcome.settled
    if outcome.ending is Ending.OK:
        transitions.ack(lease, result=outcome.result)
        return RunOutcome.OK
    # The ending first: isinstance() would ask any error for __class__, which may be a property that raises.
    if outcome.ending is Ending.SNOOZED and isinstance(error, Snooze):
        status = snooze_run(lease, error=error, log=outcome.log, also=outcome.also, again=again)
        return RunOutcome.CANCELED if status is Job.Status.CANCELED else RunOutcome.SNOOZED
    if outcome.ending is Ending.DISCARDED and isinstance(error, Discard):
        discard_run(lease, error=error, log=outcome.log, again=again)
        return RunOutcome.DISCARDED
    if outcome.ending is Ending.PARKED:
        return _park(outcome, again)
    if outcome.ending is Ending.GIVEN_UP:
        return AFTER_FAILURE[give_up(lease, again=again)]
    if outcome.ending is Ending.CANCELED:
        transitions.cancel_held(lease, again=again)
        return RunOutcome.CANCELED
    assert error is not None
    if outcome.delay_seconds is None and not issubclass(type(error), JobLost):
        # Chosen here, and not by fail(), so that the log line can say when the job runs again.
        outcome.chosen_delay()
    status = transitions.fail(
        lease,
        error=error,
        delay_seconds=outcome.delay_seconds,
        retry=outcome.retry,
        log=outcome.log,
        also=outcome.also,
        again=again,
    )
    return AFTER_FAILURE[status]


def write_plain(outcome: Outcome, problem: Exception) -> RunOutcome:
    """Write the end of a run whose own texts the database refused for `problem`. Raises LeaseLost.

    A Snooze or Discard remains one. Anything else becomes a failed attempt that says what happened.
    """
    lease, own = outcome.lease, outcome.error
    why = str(problem) if isinstance(problem, ResultError) else type(problem).__name__
    words = f"the outcome could not be stored: {why}"
    if (pause := _pause_of(outcome)) is not None:
        status = snooze_run(lease, error=pause, also=outcome.also, again=True)
        return RunOutcome.CANCELED if status is Job.Status.CANCELED else RunOutcome.SNOOZED
    if outcome.ending is Ending.DISCARDED:
        discard_run(lease, error=Discard(words), again=True)
        return RunOutcome.DISCARDED
    error: ResultError | str = ResultError(words) if outcome.ending is Ending.OK else words
    retry = outcome.retry and not (own is not None and is_permanent(own))
    status = transitions.fail(
        lease, error=error, delay_seconds=outcome.delay_seconds, retry=retry, also=outcome.also, again=True
    )
    return AFTER_FAILURE[status]


def _pause_of(outcome: Outcome) -> Snooze | None:
    """The Snooze of a run, without what a subclass adds; None if it cannot be read."""
    with suppress(Exception):
        if isinstance(outcome.error, Snooze) and outcome.ending is Ending.SNOOZED:
            return Snooze(outcome.error.after_seconds)
    return None


def _park(outcome: Outcome, again: bool) -> RunOutcome:
    lease, error = outcome.lease, outcome.error
    if type(error) is BreakerOpen:
        # It keeps its place: the next claim puts it behind the gate of the breaker.
        return RunOutcome.CANCELED if transitions.release(lease) is Job.Status.CANCELED else RunOutcome.PARKED
    if isinstance(error, LockNotAcquired):
        seconds = LOCKED_SECONDS
        parked.put_back(lease.using, lease.job_id, error)
    else:
        seconds = parked.unknown_seconds(lease)
    outcome.delay_seconds = seconds * random.uniform(0.8, 1.2)
    status = transitions.snooze(lease, delay_seconds=outcome.delay_seconds, reason=str(error), again=again)
    return RunOutcome.CANCELED if status is Job.Status.CANCELED else RunOutcome.PARKED
