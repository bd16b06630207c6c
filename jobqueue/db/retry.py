"""Retries of a whole transaction that the database refused: around atomic(), never inside.

Observers are told of each refused try, also between two tries: nothing is counted or written for them here.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

from django.db import (
    Error,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
)

from jobqueue.backoff import Backoff
from jobqueue.db import fault_vendor
from jobqueue.db.alias import explain_missing_table
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.dialect import GONE_KINDS, ErrorKind
from jobqueue.db.sessions import Opening, close_if_ended, open_connection, report_opening
from jobqueue.exceptions import DatabaseBusy, JobQueueError, OutcomeUnknown
from jobqueue.signals import send, transaction_retried

T = TypeVar("T")
#: what the transaction was for; docs/reference/commands.md says what each one covers
Verb: TypeAlias = Literal[
    "enqueue", "claim", "heartbeat", "progress", "ack", "fail", "snooze", "release", "settle", "cancel", "discard",
    "retry", "edit", "note", "resume", "pause", "limit", "breaker", "reap", "promote", "notify", "relay", "lock",
    "take", "once", "counter", "bulk", "result", "retry_transaction", "check", "housekeeping", "schedule",
    "job",
]  # fmt: skip
VERBS: tuple[Verb, ...] = get_args(Verb)
logger = logging.getLogger("jobqueue.db")

ATTEMPTS = 6
#: an attribute of connections within lock_limit(): for how many seconds a transaction that meets locks is tried again
LOCK_TRIES = "_jobqueue_lock_tries"
#: errors that are looked at, each of them the cause of the one before
CAUSES_MAX = 10
# Through the base class: a subclass may have properties of these names, which raise.
_CAUSE, _CONTEXT = BaseException.__dict__["__cause__"], BaseException.__dict__["__context__"]
_PAUSES = Backoff(base_seconds=0.015, cap_seconds=0.5, jitter=1 / 3)
_UNKNOWN = (
    "the connection broke ({}) before the database answered: the write may or may not have happened. "
    "Look before you repeat it; with a request_id, or a dedupe_key that is held beyond the end of the job, a repeat is "
    "safe."
)
#: errors of the database or of the connection, not of the rows that are written
OF_THE_DATABASE = (
    OperationalError, ProgrammingError, InterfaceError, InternalError, NotSupportedError, OutcomeUnknown
)  # fmt: skip
#: tries that the database refused to this process since it started, by its error code
retries: Counter[str] = Counter()
_counting = threading.Lock()


class Refusal(NamedTuple):
    """One try of a transaction that the database refused."""

    verb: Verb
    kind: ErrorKind
    redone: bool  # False: the caller gets the error


Observer: TypeAlias = Callable[[Refusal], None]
_observers: list[Observer] = []


def observe_refusals(observer: Observer) -> None:
    """Call `observer` with each refusal in this process and its forks. It must not use the database, nor raise."""
    if observer not in _observers:
        _observers.append(observer)


def report_refusal(refusal: Refusal) -> None:
    for observer in _observers:
        observer(refusal)


def retry_transient(verb: Verb, work: Callable[[], T], *, using: str, repeatable: bool = True) -> T:
    """The result of `work`, which is one whole transaction and is called again after a transient fault.

    Each refusal is counted for `verb`: as redone, or as given up where the error is raised.
    Deadlock, lock wait, busy: redone up to 6 times with jittered waits of 5 to 500 ms; then DatabaseBusy. Within
    lock_limit(), sooner after waits for locks.
    Lost connection: closed and redone once. With repeatable=False it is redone only if the statement surely
    never reached the server; else OutcomeUnknown. Inside a caller's transaction (also with autocommit off) `work`
    runs once and every error is raised: only the owner can redo it (a deadlock rolled all of it back).
    """
    with explain_missing_table(using):
        if in_callers_transaction(connections[using]):
            return work()
        return _redone(verb, work, using, repeatable)


def retry_reporting(verb: Verb, work: Callable[[], T], *, using: str) -> tuple[T, bool]:
    """retry_transient(), and whether `work` ran again: an earlier run may have been committed without an answer."""
    runs = 0

    def counted() -> T:
        nonlocal runs
        runs += 1
        return work()

    return retry_transient(verb, counted, using=using), runs > 1


def retry_looked_up(verb: Verb, work: Callable[[], T], *, using: str) -> T:
    """retry_transient() for a write that looks up, before it is repeated, what an earlier try of it has written.

    Any error after a try that may have been committed is OutcomeUnknown: "nothing was written" would not be true.
    """
    connection, lost = connections[using], list[Error]()
    if in_callers_transaction(connection):
        return retry_transient(verb, work, using=using)

    def watched() -> T:
        try:
            return work()
        except Error as error:
            reader = fault_vendor(using)
            if in_callers_transaction(connection) or (
                reader.error_kind(error) in GONE_KINDS and not reader.never_sent(error)
            ):
                lost.append(error)
            raise

    try:
        return retry_transient(verb, watched, using=using)
    except (Error, JobQueueError) as error:
        if lost:
            raise OutcomeUnknown(_UNKNOWN.format(lost[0])) from error
        raise


def _redone(verb: Verb, work: Callable[[], T], using: str, repeatable: bool) -> T:
    connection = connections[using]
    close_if_ended(connection)
    reconnected = False
    until = time.monotonic() + getattr(connection, LOCK_TRIES, math.inf)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            open_connection(connection)
            return work()
        except Error as error:
            reader = fault_vendor(using)
            # Django could not turn autocommit on again after a transaction of ours. Whether that was committed is
            # unknown, and every later statement would be part of a transaction that never ends.
            left_off = in_callers_transaction(connection)
            kind = ErrorKind.LOST_CONNECTION if left_off else reader.error_kind(error)
            if kind is None:
                raise
            gone = kind in GONE_KINDS
            tired = kind in (ErrorKind.LOCK_TIMEOUT, ErrorKind.BUSY) and time.monotonic() >= until
            unsure = gone and not repeatable and (left_off or not reader.never_sent(error))
            redone = attempt < ATTEMPTS and not unsure and not tired and not (gone and reconnected)
            count_refusal(verb, kind, error, using=using, attempt=attempt, redone=redone)
            if gone:
                connection.close()
                reconnected = True
            if unsure:
                raise OutcomeUnknown(_UNKNOWN.format(error)) from error
            if gone and not redone:
                raise
            if not redone:
                raise DatabaseBusy(
                    f"the database refused this transaction {attempt} times, last with: {error}. "
                    "Nothing was written; try again later and look for what holds the locks."
                ) from error
            time.sleep(_PAUSES.delay_seconds(attempt))
    raise AssertionError("unreachable: the last attempt returns or raises")


def count_refused_job(error: BaseException, *, using: str) -> None:
    """Count a job that ended in `error` because its own code got no connection; not what a verb has counted already."""
    found: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if found is None or _has_frame(found, _redone.__code__):
            return
        # Not isinstance(): the error of a job may have a __class__ that raises.
        if issubclass(type(found), Error) and fault_vendor(using).error_kind(found) is ErrorKind.NO_CONNECTION:
            report_refusal(Refusal("job", ErrorKind.NO_CONNECTION, redone=False))
            report_opening(Opening(0.0, opened=False, refused=True))
            return
        found = _CAUSE.__get__(found) or _CONTEXT.__get__(found)


def _has_frame(error: BaseException, code: CodeType) -> bool:
    frame = BaseException.__dict__["__traceback__"].__get__(error)
    while frame is not None:
        if frame.tb_frame.f_code is code:
            return True
        frame = frame.tb_next
    return False


def count_error(verb: Verb, error: Error, *, using: str) -> None:
    """Count an error after which the rest of a transaction is left for a later call; a lost connection is closed."""
    kind = fault_vendor(using).error_kind(error)
    count_refusal(verb, kind, error, using=using, attempt=1, redone=True)
    connection = connections[using]
    if kind in GONE_KINDS and not in_callers_transaction(connection):
        connection.close()


def count_refusal(
    verb: Verb, kind: ErrorKind | None, error: BaseException, *, using: str, attempt: int, redone: bool
) -> None:
    """Report a refused try to the observers, if the error is one that passes, and send transaction_retried."""
    code = fault_vendor(using).error_code(error)
    with _counting:
        retries[code] += 1
    if kind is not None:
        report_refusal(Refusal(verb, kind, redone))
    logger.debug("%s on %r %s after %s (attempt %d)", verb, using, "redone" if redone else "given up", code, attempt)
    send(transaction_retried, type(connections), using=using, code=code, attempt=attempt, error=error, verb=verb)
