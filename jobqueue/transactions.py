"""retry_transaction: a transaction that meets a deadlock or a lock timeout is done again, all of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, ParamSpec, TypeVar, overload

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from jobqueue.db import fault_vendor, vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.base import Fault
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.retry import count_retry
from jobqueue.db.sockets import close_if_ended
from jobqueue.db.user_code import raise_swallowed_errors
from jobqueue.exceptions import DatabaseBusy, DedupeConflict, InsideTransaction, InvalidType, StaleSnapshot
from jobqueue.outside import OutsideCallWarning, forbid_outside_calls
from jobqueue.validation import check_int, check_seconds

__all__ = ["OutsideCallWarning", "forbid_outside_calls", "retry_transaction"]

P = ParamSpec("P")
T = TypeVar("T")

_PAUSE_SECONDS_MAX = 1.0


@overload
def retry_transaction(function: Callable[P, T]) -> Callable[P, T]: ...
@overload
def retry_transaction(
    *, attempts: int = 5, lock_timeout_seconds: float | None = None, using: str | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def retry_transaction(
    function: Callable[..., Any] | None = None,
    *,
    attempts: int = 5,
    lock_timeout_seconds: float | None = None,
    using: str | None = None,
) -> Any:
    """Decorator: each call is one transaction on `using` ("default"), redone from its beginning after a passing fault.

    Passing are deadlocks, lock timeouts and serialization failures, also one that the function swallowed, and
    StaleSnapshot, DedupeConflict and DatabaseBusy. Up to `attempts` (1-100) runs with jittered pauses of up to a
    second; then the last error is raised. LockNotAcquired is not redone: who gave a timeout has waited long enough.

    `lock_timeout_seconds` bounds every single wait for a lock inside (whole seconds on MySQL and MariaDB, rounded up),
    and is set back after. Whatever the function does besides writing to `using` happens once per run: in DEBUG and in
    tests network calls inside are warned about, see forbid_outside_calls(). Calls raise InsideTransaction where a
    transaction is open already: only the outermost can be redone. Coroutines and generators: InvalidType.
    """
    check_int(attempts, "attempts", 1, 100)
    seconds = None if lock_timeout_seconds is None else check_seconds(lock_timeout_seconds, "lock_timeout_seconds")
    alias = DEFAULT_DB_ALIAS if using is None else alias_of(using)

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        _check(work)

        @wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            return _run(lambda: work(*args, **kwargs), work.__name__, attempts, seconds, alias)

        return run

    return decorate if function is None else decorate(function)


def _check(work: Any) -> None:
    if not callable(work) or iscoroutinefunction(work) or isgeneratorfunction(work) or isasyncgenfunction(work):
        raise InvalidType(
            f"retry_transaction takes a plain function, got {work!r}: transactions do not span awaits or yields. "
            "Put the transaction into a function, and call that, from coroutines through sync_to_async."
        )


def _run(work: Callable[[], T], name: str, attempts: int, seconds: float | None, using: str) -> T:
    if in_open_transaction(using):
        raise InsideTransaction(
            f"{name}() would be redone after a deadlock, but a transaction is open on {using!r}, which a deadlock "
            "undoes as a whole. Nothing was run; put @retry_transaction on the outermost function only."
        )
    close_if_ended(connections[using])
    for attempt in range(1, attempts + 1):
        once = _Once(using, seconds)
        try:
            return once.run(work)
        except (Error, StaleSnapshot, DedupeConflict, DatabaseBusy) as error:
            # Not again after the commit: what failed then was an on_commit hook.
            if once.committed or (isinstance(error, Error) and fault_vendor(using).fault(error) is not Fault.TRANSIENT):
                raise
            if attempt == attempts:
                error.add_note(
                    f"{name}() was tried {attempts} times, each time undone by the database. Nothing is stored."
                )
                raise
            count_retry(using, fault_vendor(using).error_code(error), attempt, error)
            time.sleep(random.uniform(0.5, 1.0) * min(_PAUSE_SECONDS_MAX, 0.02 * 2**attempt))
    raise AssertionError("unreachable: the last attempt returns or raises")


class _Once:
    """One run of the transaction."""

    def __init__(self, using: str, lock_timeout_seconds: float | None) -> None:
        self.using, self.seconds = using, lock_timeout_seconds
        self.committed = False

    def run(self, work: Callable[[], T]) -> T:
        connection, server = connections[self.using], vendor(self.using)
        with server.timed_transaction(connection, self.seconds):
            transaction.on_commit(self._commit, using=self.using)
            with raise_swallowed_errors(self.using), forbid_outside_calls():
                value = work()
        return value

    def _commit(self) -> None:
        self.committed = True
