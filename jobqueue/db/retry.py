"""Retries of a whole transaction that the database refused: around atomic(), never inside."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from django.db import Error, connections

from jobqueue.backoff import Backoff
from jobqueue.db import fault_vendor
from jobqueue.db.alias import explain_missing_table
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.dialect import Fault
from jobqueue.db.sockets import close_if_ended
from jobqueue.exceptions import DatabaseBusy, OutcomeUnknown
from jobqueue.signals import send, transaction_retried

T = TypeVar("T")
logger = logging.getLogger("jobqueue.db")

ATTEMPTS = 6
_PAUSES = Backoff(base_seconds=0.015, cap_seconds=0.5, jitter=1 / 3)
_UNKNOWN = (
    "the connection broke ({}) before the database answered: the write may or may not have happened. "
    "Look before you repeat it; with a dedupe_key or request_id a repeat is safe."
)
#: transactions redone by this process since it started, by the database's error code
retries: Counter[str] = Counter()
_counting = threading.Lock()


def retry_transient(work: Callable[[], T], *, using: str, repeatable: bool = True) -> T:
    """The result of `work`, which is one whole transaction and is called again after a transient fault.

    Deadlock, lock wait, busy: redone up to 6 times with jittered waits of 5 to 500 ms; then DatabaseBusy.
    Lost connection: closed and redone once. With repeatable=False it is redone only if the statement surely
    never reached the server; else OutcomeUnknown. Inside a caller's transaction (also with autocommit off) `work`
    runs once and every error is raised: only the owner can redo it (a deadlock rolled all of it back).
    """
    with explain_missing_table(using):
        if in_callers_transaction(connections[using]):
            return work()
        return _redone(work, using, repeatable)


def retry_reporting(work: Callable[[], T], *, using: str) -> tuple[T, bool]:
    """retry_transient(work), and whether `work` ran again: an earlier run may have been committed without an answer."""
    runs = 0

    def counted() -> T:
        nonlocal runs
        runs += 1
        return work()

    return retry_transient(counted, using=using), runs > 1


def _redone(work: Callable[[], T], using: str, repeatable: bool) -> T:
    connection = connections[using]
    close_if_ended(connection)
    reconnected = False
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except Error as error:
            reader = fault_vendor(using)
            # Django could not turn autocommit on again after a transaction of ours. Whether that was committed is
            # unknown, and every later statement would be part of a transaction that never ends.
            left_off = in_callers_transaction(connection)
            fault = Fault.GONE if left_off else reader.fault(error)
            if fault is None:
                raise
            count_retry(using, reader.error_code(error), attempt, error)
            if fault is Fault.GONE:
                unsure = not repeatable and (left_off or not reader.never_sent(error))
                connection.close()
                if unsure:
                    raise OutcomeUnknown(_UNKNOWN.format(error)) from error
                if reconnected:
                    raise
                reconnected = True
            elif attempt == ATTEMPTS:
                raise DatabaseBusy(
                    f"the database refused this transaction {ATTEMPTS} times, last with: {error}. "
                    "Nothing was written; try again later and look for what holds the locks."
                ) from error
            time.sleep(_PAUSES.delay_seconds(attempt))
    raise AssertionError("unreachable: the last attempt returns or raises")


def count_error(error: Error, *, using: str) -> None:
    """Count an error after which the transaction is not redone; a session that is gone is closed."""
    reader = fault_vendor(using)
    count_retry(using, reader.error_code(error), 1, error)
    connection = connections[using]
    if reader.fault(error) is Fault.GONE and not in_callers_transaction(connection):
        connection.close()


def count_retry(using: str, code: str, attempt: int, error: BaseException | None = None) -> None:
    """Count one retried transaction and send transaction_retried."""
    with _counting:
        retries[code] += 1
    logger.debug("transaction on %r redone after %s (attempt %d)", using, code, attempt)
    send(transaction_retried, type(connections), using=using, code=code, attempt=attempt, error=error)
