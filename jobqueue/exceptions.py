"""Every error the product raises: one tree, each message says what happened, what happens next, what to do."""

from __future__ import annotations

from collections.abc import Mapping


class JobQueueError(Exception):
    """Root of the tree. Not raised itself."""


class InvalidValue(JobQueueError, ValueError):
    """An argument of the right type has a value that is refused. Nothing was written."""


class InvalidType(JobQueueError, TypeError):
    """An argument has the wrong type. Nothing was written."""


class UnknownQueue(InvalidValue):
    """The queue is not in TASKS[...]["QUEUES"]. Nothing was written."""


class PayloadError(JobQueueError, TypeError, ValueError):
    """A payload or result is not JSON that every supported database stores unchanged. The message names the path."""


class PayloadTooLarge(PayloadError):
    """The encoded payload is over JOBQUEUE["MAX_PAYLOAD_BYTES"]. Nothing was written."""


class ResultError(PayloadError):
    """A result cannot be stored. The job's effect has happened, so the job ends FAILED and is not retried."""


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
    """Raise it inside a job to stop for a cancel request: the job ends CANCELED. Also the cause of canceled results."""


class JobExpired(JobQueueError):
    """The job had not begun when its expires_at came, so it was not run. What is written as the error."""


class JobLost(JobQueueError):
    """The worker that ran the job died or its lease ran out before it answered."""


class SoftTimeout(JobQueueError):
    """Raised inside a job that has run for longer than its timeout_seconds; catch it to clean up, then let it out."""


class HardTimeout(JobQueueError):
    """The job ran for longer than its hard_timeout_seconds, so its worker process was killed."""


class TransactionRequired(JobQueueError):
    """The call only makes sense inside transaction.atomic() of its database. Nothing was written."""


class InsideTransaction(JobQueueError, RuntimeError):
    """The call must commit by itself and so refuses to run inside an open transaction. Nothing was written."""


class TransactionLeftOpen(JobQueueError, RuntimeError):
    """A synchronous call of a coroutine job returned inside a transaction. The transaction was undone."""

    def __init__(self, aliases: list[str]) -> None:
        super().__init__(
            f"a call made through sync_to_async returned inside a transaction on {', '.join(aliases)}; it was undone, "
            "because other coroutine jobs use the same connection next. "
            "Put the whole transaction into one function, and call that."
        )


class LockNotAcquired(JobQueueError):
    """Somebody else held the lock until timeout_seconds had passed. Nothing was written."""


class LockAlreadyHeld(JobQueueError, RuntimeError):
    """The thread or task that asks holds this lock itself, and locks are not re-entrant. Nothing changed.

    A mistake of the program: waiting could not help, so it is no LockNotAcquired, and fails a job that lets it out.
    """


class LockNotHeld(JobQueueError):
    """Release or renewal by somebody who does not hold the lock: never acquired, or released before. No change."""


class LockLost(LockNotHeld):
    """The lock ended under its holder: it ran out, or its connection broke. Others may have held it since."""


class StaleSnapshot(JobQueueError):
    """The mutex was had, but reads of this transaction would show the state before its last holder's commit.

    The transaction must be rolled back and begun again, with the mutex (on SQLite: or once()) before its first read.
    """


class StaleFence(JobQueueError):
    """A newer fence has written here already, so this one was refused. Nothing was written."""


class BatchErrors(JobQueueError):
    """Raise it in a batch handler: the jobs that `errors` names failed, each with its error; all others are done.

    `errors` is a dict of exceptions by job id. Raises InvalidType for anything else.
    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        if not isinstance(errors, Mapping) or not all(isinstance(e, BaseException) for e in errors.values()):
            raise InvalidType("BatchErrors takes a dict of exceptions by job id: {lease.job_id: error, ...}.")
        self.errors = dict(errors)
        super().__init__(f"{len(self.errors)} jobs of the batch failed; the others are done.")


class InProgress(JobQueueError):
    """Somebody else is working under this idempotency key right now. Nothing was written; ask again later."""


class KeyReused(JobQueueError, ValueError):
    """The idempotency key belongs to another request, so this one was refused. Nothing was written."""


class DestinationDown(JobQueueError):
    """A destination of events could not be reached. Nothing is charged for it; the relay tries again until it is back.

    A destination of your own, or a subscriber, may raise it.
    """


class WrongDatabase(JobQueueError, ValueError):
    """The work and the queue are in different databases, so they cannot share one commit."""


class DatabaseBusy(JobQueueError):
    """The database refused the same transaction several times (deadlock, lock wait). Nothing was written."""


class OutcomeUnknown(JobQueueError):
    """The connection broke while a commit was under way: it may or may not have happened.

    Repeat the call with the same dedupe_key: it adds nothing if the first one was committed.
    """


class DedupeConflict(JobQueueError):
    """Another transaction holds the dedupe key and this transaction's snapshot cannot see it. Retry the transaction."""


class NotSupported(JobQueueError, ValueError):
    """The database or this version cannot do what was asked; the message says what to use instead."""
