"""The exceptions of the package, in one tree. Each message says what happened, what follows, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db.utils import DatabaseError


class JobQueueError(Exception):
    """The base class of all exceptions of the package; never raised itself."""


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


class InsideTransaction(JobQueueError, RuntimeError):
    """The call commits by itself, so it cannot be made inside an open transaction. Nothing was written."""


class InsideCoroutine(JobQueueError, SynchronousOnlyOperation):
    """The call uses the database, so a coroutine must not make it. Nothing was written; the message names the other."""


class TransactionLeftOpen(JobQueueError, RuntimeError):
    """A synchronous call of a coroutine job returned inside a transaction. The transaction was rolled back."""

    def __init__(self, aliases: list[str]) -> None:
        super().__init__(
            f"a call made through sync_to_async returned inside a transaction on {', '.join(aliases)}. It was rolled "
            "back, because other coroutine jobs use the same connection next. "
            "Put the whole transaction into one function, and call that."
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


class OutcomeUnknown(JobQueueError):
    """The connection broke during a commit, so the commit may or may not have happened.

    Repeat the call with the same dedupe_key: it adds no second job if the first call was committed.
    """


class DedupeConflict(JobQueueError):
    """Another transaction has the dedupe key, but this transaction's snapshot cannot see it. Retry the transaction."""


class NotSupported(JobQueueError, ValueError):
    """The database, or its version, does not support the call; the message says what to use instead."""
