"""The exceptions of the package, in one tree. Each message says what happened, what follows, and what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db.utils import DatabaseError


class JobQueueError(Exception):
    """The base class of all exceptions of the package; never raised itself. All can be pickled and copied."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors of some take other arguments than their message, which is all that BaseException keeps.
        found: Any = super().__reduce__()
        kind, args, *state = found
        return _restored, (kind, *args), *state


def _restored(kind: type[JobQueueError], *args: object) -> JobQueueError:
    """An exception as it was, made without its constructor; BaseException keeps `args`."""
    return kind.__new__(kind, *args)


class InvalidValue(JobQueueError, ValueError):
    """An argument has the right type but a wrong value. Nothing was written."""


class InvalidType(JobQueueError, TypeError):
    """An argument has the wrong type. Nothing was written."""


class WrongSettings(JobQueueError, ImproperlyConfigured):
    """A setting is missing or wrong; the message names it. Nothing was written."""


class NotMigrated(JobQueueError, DatabaseError):
    """The tables of jobqueue are not in the queue's database: its migrations were not run. Nothing was written."""


class UnknownQueue(InvalidValue):
    """The queue is not in TASKS[...]["QUEUES"]. Nothing was written."""


class PayloadError(JobQueueError, TypeError, ValueError):
    """A payload or result is not JSON that every supported database stores unchanged. The message names the path."""


class WrongArguments(PayloadError):
    """The function of a task cannot be called with these arguments. Nothing was written.

    Raised by enqueue(). A job whose stored arguments do not fit ends FAILED and is not retried.
    """


class UnknownMethod(JobQueueError, AttributeError):
    """A task has no such method. The message says what to write instead of the method of another task queue."""


class MissingKey(JobQueueError, KeyError):
    """The payload of a raw row has no such key. Raised by payload[key] in a handler; the cause is FORMAT."""

    __str__ = Exception.__str__  # KeyError shows the repr of its text


class PayloadTooLarge(PayloadError):
    """The encoded payload is longer than JOBQUEUE["MAX_PAYLOAD_BYTES"]. Nothing was written."""


class ResultError(PayloadError):
    """The result of a job cannot be stored. The job ends FAILED and is not retried, because its work is done."""


class UnknownTask(JobQueueError):
    """No task or handler of this name is registered in this process. The job is parked, not failed."""


class LeaseLost(JobQueueError):
    """The caller no longer holds the job: its lease was reaped, released or settled. Nothing was written."""

    def __init__(self, job_id: int, doing: str = "settle") -> None:
        self.job_id = job_id
        super().__init__(
            f"job {job_id}: the lease ended before this {doing}; nothing was written. "
            "The job is retried or settled by its new holder. "
            "If this repeats, raise lease_seconds or shorten the job."
        )


class JobCanceled(JobQueueError):
    """Raised by a job that stops for a cancel request: the job ends CANCELED. Also the error in a canceled result."""


class Retry(JobQueueError):
    """Raised by a job: the attempt failed and another one follows, whatever retry_on and no_retry_on say.

    It begins `after_seconds` from now (a number, a timedelta, or text such as "5m"; None: after the task's back-off).
    max_attempts still applies. Inside finish(), it undoes the block, as Snooze and Discard do. Raises InvalidType and
    InvalidValue for anything else.
    """

    def __init__(self, after_seconds: float | timedelta | str | None = None) -> None:
        self.after_seconds = None if after_seconds is None else _delay(after_seconds, "Retry")
        after = "after the back-off" if self.after_seconds is None else f"in {self.after_seconds:g} s"
        super().__init__(f"the job asked to be tried again {after}")


class Snooze(JobQueueError):
    """Raised by a job: run it again in `after_seconds` (as in Retry), without using an attempt."""

    def __init__(self, after_seconds: float | timedelta | str) -> None:
        self.after_seconds = _delay(after_seconds, "Snooze")
        super().__init__(f"the job asked to run again in {self.after_seconds:g} s; no attempt was used")


class Discard(JobQueueError):
    """Raised by a job that is not needed any more: it ends CANCELED, and last_error is `reason`."""

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str):
            raise InvalidType(f"the reason of a Discard must be a str, got {type(reason).__name__}.")
        self.reason = reason.strip() or "discarded without a reason"
        super().__init__(self.reason)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DELAY_MAX = 366 * 86400  # as jobqueue.base.validation.SECONDS_MAX, which this module must not import


def _delay(given: object, what: str) -> float:
    if isinstance(given, timedelta):
        given = given.total_seconds()
    elif isinstance(given, str) and (found := re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", given.strip(), re.ASCII)):
        given = float(found[1]) * _UNITS[found[2]]
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise InvalidType(f"{what}(after_seconds) must be a number of seconds, a timedelta or text such as '5m'.")
    if isinstance(given, str) or not (0 <= given <= _DELAY_MAX and math.isfinite(given)):
        raise InvalidValue(
            f"{what}(after_seconds={given!r:.40}): it must be a duration between 0 and {_DELAY_MAX} seconds. "
            "The attempt fails with this error; correct the call."
        )
    return float(given)


class JobExpired(JobQueueError):
    """The job had not started when its expires_at passed, so it was not run. Only stored as the job's error."""


class JobLost(JobQueueError):
    """The process that ran the job died, or its lease expired during the run. Only stored as the job's error."""


class SoftTimeout(JobQueueError):
    """Raised inside a job that runs for longer than its timeout_seconds. Catch it to clean up, then re-raise it."""


class HardTimeout(JobQueueError):
    """The job ran for longer than its hard_timeout_seconds, so its process was killed. Only stored as its error."""


class TransactionRequired(JobQueueError):
    """The call must be made inside transaction.atomic() on its database. Nothing was written."""


class WaitTimeout(JobQueueError, TimeoutError):
    """result.wait() has waited for its time, and the job has not ended. The job goes on."""


class InsideTransaction(JobQueueError, RuntimeError):
    """The call commits by itself, so it cannot be made inside an open transaction. Nothing was written."""


class InsideCoroutine(JobQueueError, SynchronousOnlyOperation):
    """The call uses the database, so a coroutine must not make it. Nothing was written; the message names the other."""

    def __init__(self, call: str, instead: str) -> None:
        super().__init__(
            f"{call} was called inside a coroutine, and it uses the database. Nothing was written; {instead}."
        )


class TransactionLeftOpen(JobQueueError, RuntimeError):
    """A job, or a synchronous call of a coroutine, returned inside a transaction. The transaction was rolled back."""

    def __init__(self, aliases: list[str], what: str = "a call made through sync_to_async") -> None:
        super().__init__(
            f"{what} returned inside a transaction on {', '.join(aliases)}. What it wrote there was rolled back, "
            "because other jobs use the same connection next. Put the whole transaction into one function, with "
            "transaction.atomic() or with a COMMIT in any case."
        )


class LockNotAcquired(JobQueueError):
    """Another holder had the lock until timeout_seconds had passed. Nothing was written."""


class LockAlreadyHeld(JobQueueError, RuntimeError):
    """The calling thread or task holds this lock already; locks are not re-entrant. Nothing was changed.

    This is an error in the program, not a LockNotAcquired, because waiting cannot help. It fails the job.
    """


class LockNotHeld(JobQueueError):
    """release() or renew() of a lock that is not held: never acquired, or already released. Nothing was changed."""


class LockLost(LockNotHeld):
    """The lock was lost while it was held: it expired, or its connection broke. Others may have held it since then."""


class StaleSnapshot(JobQueueError):
    """The mutex was acquired, but this transaction would read the state from before the last holder's commit.

    Roll the transaction back and begin it again, with the mutex (on SQLite: or once()) before its first read.
    """


class StaleFence(JobQueueError):
    """A holder with a newer fence has written already. Nothing was written."""


class BatchErrors(JobQueueError):
    """Raised by a batch handler: the jobs in `errors` failed, each with its own error; all other jobs are done.

    `errors` is a dict of exceptions by job id. Raises InvalidType for anything else.
    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        if not isinstance(errors, Mapping) or not all(isinstance(e, BaseException) for e in errors.values()):
            raise InvalidType("BatchErrors takes a dict of exceptions by job id: {lease.job_id: error, ...}.")
        self.errors = dict(errors)
        super().__init__(f"{len(self.errors)} jobs of the batch failed; the others are done.")


class InProgress(JobQueueError):
    """Another call with this idempotency key is still running. Nothing was written; try again later."""


class KeyReused(JobQueueError, ValueError):
    """The idempotency key was used for a different request. Nothing was written."""


class DestinationDown(JobQueueError):
    """A destination of events could not be reached. The relay tries again until it can; no attempt is used.

    Your own destinations and subscribers may raise it.
    """


class WrongDatabase(JobQueueError, ValueError):
    """The work and the queue are in different databases, so one commit cannot include both."""


class DatabaseBusy(JobQueueError):
    """The same transaction failed several times with transient errors (deadlock, lock wait). Nothing was written."""


class StatementTimeout(JobQueueError, TimeoutError):
    """A read took longer than its limit, so the database stopped it. Nothing was written."""


class QueueFull(JobQueueError, ValueError):
    """The queue takes no more jobs: it is draining, or MAX_READY jobs wait in it. Nothing was written.

    `queue` is its name, and `ready` the number of jobs that wait there; None if it is draining.
    """

    def __init__(self, message: str, queue: str = "", ready: int | None = None) -> None:
        super().__init__(message)
        self.queue, self.ready = queue, ready


class OutcomeUnknown(JobQueueError):
    """The connection broke during a commit, so the commit may or may not have happened.

    Repeat the call with the same dedupe_key while that is held, or with the same request_id: it does nothing twice. A
    key that the claim or the end of the job frees does not help: look for the job first.
    """


class DedupeConflict(JobQueueError):
    """Another transaction has the dedupe key, but this transaction's snapshot cannot see it. Retry the transaction."""


class NotSupported(JobQueueError, ValueError):
    """The database, or its version, does not support the call; the message says what to use instead."""
