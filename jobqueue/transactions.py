"""Redo a transaction after a deadlock, lock its rows, and warn of calls to other systems inside it."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, ParamSpec, TypeVar, overload

from django.db import DEFAULT_DB_ALIAS, Error, connections, models, transaction

from jobqueue.backoff import Backoff
from jobqueue.base.compat import Task
from jobqueue.base.validation import check_int, check_seconds
from jobqueue.conf import is_development
from jobqueue.context.guards import raise_swallowed_errors
from jobqueue.db import fault_vendor, vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.dialect import GONE_KINDS, ErrorKind
from jobqueue.db.querysets import M, check_lock_options, check_queryset
from jobqueue.db.retry import Refusal, count_refusal, report_refusal
from jobqueue.db.sessions import close_if_ended
from jobqueue.exceptions import (
    DatabaseBusy,
    DedupeConflict,
    InsideTransaction,
    InvalidType,
    LockNotAcquired,
    StaleSnapshot,
    TransactionRequired,
)

__all__ = ["OutsideCallWarning", "forbid_outside_calls", "lock_rows", "retry_transaction"]

P = ParamSpec("P")
T = TypeVar("T")

_PAUSES = Backoff(base_seconds=0.03, cap_seconds=1.0, jitter=1 / 3)
_NETWORK_EVENTS = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


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
) -> object:
    """Decorator: each call is one transaction on `using` ("default"), which is redone after a transient fault.

    Transient are deadlocks, lock timeouts and serialization failures, also those that the function caught, and
    StaleSnapshot, DedupeConflict and DatabaseBusy. The function runs up to `attempts` (1-100) times with random pauses
    of up to a second; then the last error is raised. LockNotAcquired is raised at once: its timeout has passed.

    `lock_timeout_seconds` limits each wait for a lock inside (whole seconds on MySQL and MariaDB, rounded up). What the
    function does besides writing to `using` happens once per run; with DEBUG and in tests network calls cause a
    warning, see forbid_outside_calls(). Raises InsideTransaction where a transaction is open already, because only the
    outermost one can be redone; InvalidType for coroutines and generators.
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


def _check(work: object) -> None:
    if (
        not callable(work)
        or isinstance(work, Task)
        or iscoroutinefunction(work)
        or isgeneratorfunction(work)
        or isasyncgenfunction(work)
    ):
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
        committed = threading.Event()
        try:
            with vendor(using).locks.timed_transaction(connections[using], seconds):
                transaction.on_commit(committed.set, using=using)
                with raise_swallowed_errors(using), forbid_outside_calls():
                    value = work()
            return value
        except (Error, StaleSnapshot, DedupeConflict, DatabaseBusy) as error:
            # After the commit an on_commit hook has failed, and the transaction must not be redone.
            passes = not isinstance(error, Error) or fault_vendor(using).error_kind(error) not in (None, *GONE_KINDS)
            if committed.is_set() or not passes:
                raise
            kind = _kind(error, using)
            if attempt == attempts:
                report_refusal(Refusal("retry_transaction", kind, redone=False))
                error.add_note(
                    f"{name}() was tried {attempts} times, each time undone by the database. Nothing is stored."
                )
                raise
            count_refusal("retry_transaction", kind, error, using=using, attempt=attempt, redone=True)
            time.sleep(_PAUSES.delay_seconds(attempt))
    raise AssertionError("unreachable: the last attempt returns or raises")


def _kind(error: Exception, using: str) -> ErrorKind:
    if isinstance(error, DatabaseBusy):
        return ErrorKind.BUSY
    return fault_vendor(using).error_kind(error) or ErrorKind.SERIALIZATION


def lock_rows(queryset: models.QuerySet[M], *, skip_locked: bool = False, nowait: bool = False) -> list[M]:
    """The rows of `queryset`, in its order (else by key), locked until the caller's transaction ends.

    Rows that others have locked are waited for; `skip_locked` leaves them out; `nowait` raises LockNotAcquired at once,
    and the transaction stays usable, on PostgreSQL too. Rows of joined tables are not locked where the database can do
    that (not on MariaDB). SQLite locks no rows: its only writer waits for the others, whatever is asked for.

    Raises TransactionRequired outside transaction.atomic(), InvalidType, InvalidValue, and the database's own errors
    (a deadlock, a lock timeout).
    """
    check_lock_options(skip_locked, nowait)
    rows = check_queryset(queryset)
    if not in_open_transaction(rows.db):
        raise TransactionRequired(
            f"lock_rows() keeps its locks until a transaction ends, and none is open on {rows.db!r}. Nothing was "
            "locked; call it inside transaction.atomic()."
        )
    locks = vendor(rows.db).locks
    if not nowait:
        return list(locks.lock_own(rows, skip_locked=skip_locked))
    try:
        # A savepoint: PostgreSQL undoes everything since the last one.
        with transaction.atomic(using=rows.db):
            return list(locks.lock_own(rows, skip_locked=False, nowait=True))
    except Error as error:
        if not locks.is_lock_timeout(error):
            raise
        table = rows.model._meta.db_table
        raise LockNotAcquired(
            f"another transaction has locked a row of {table} that the queryset selects. Nothing was locked; try again "
            "later, or let the call wait (nowait=False)."
        ) from error


class OutsideCallWarning(RuntimeWarning):
    """A network connection, or a file for writing, was opened inside a block that holds locks."""


class _Watched(threading.local):
    blocks = 0
    file_blocks = 0


_watched = _Watched()
_installing = threading.Lock()
_installed = False


@contextmanager
def forbid_outside_calls(*, files: bool = False) -> Iterator[None]:
    """Issue an OutsideCallWarning when this thread opens a connection, or sends a datagram, inside the block.

    With `files` also when it opens a file for writing, renames or deletes one: no rollback undoes that. Active with
    DEBUG and in test runs only. It uses an audit hook of Python (sys.addaudithook: socket.connect,
    socket.sendto, socket.sendmsg), so it does not see connections that are already open, sockets of C libraries and
    other threads. Connections to the servers of DATABASES and Unix sockets are allowed. With the warning as an error
    (python -W error::jobqueue.transactions.OutsideCallWarning) the call itself fails.
    """
    if not is_development():
        yield
        return
    _install()
    _watched.blocks += 1
    _watched.file_blocks += files
    try:
        yield
    finally:
        _watched.blocks -= 1
        _watched.file_blocks -= files


def _install() -> None:
    """Install the hook once per process: Python cannot remove it again."""
    global _installed
    with _installing:
        if not _installed:
            sys.addaudithook(_hook)
            _installed = True


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _watched.blocks:
        return
    if _watched.file_blocks and _changes_a_file(event, args):
        warnings.warn(
            f"the file {args[0]!r} was changed inside a transaction: a rollback does not undo that, and a retry "
            "repeats it. Do it after the transaction, in transaction.on_commit() or a job.",
            OutsideCallWarning,
            stacklevel=3,
        )
    if event not in _NETWORK_EVENTS:
        return
    address = args[1]
    if not isinstance(address, tuple) or address[:2] in _databases():
        return
    warnings.warn(
        f"a connection to {address[0]}:{address[1]} was opened inside a transaction: it holds its locks, and others "
        "wait, for as long as the answer takes. Do it before the transaction, or after it in transaction.on_commit() "
        "or a job.",
        OutsideCallWarning,
        stacklevel=3,
    )


def _changes_a_file(event: str, args: tuple[Any, ...]) -> bool:
    """Return whether an audit event is such a change; Python's own caches of compiled modules are none."""
    # A number is a pipe or a file that is open already.
    if event == "open" and (isinstance(args[0], int) or not args[2] & _WRITING):
        return False
    return event in ("open", "os.rename", "os.remove") and args[0] != os.devnull and "__pycache__" not in str(args[0])


def _databases() -> set[tuple[object, ...]]:
    """The addresses of DATABASES: some drivers use Python's sockets."""
    found: set[tuple[object, ...]] = set()
    for values in connections.settings.values():
        host, port = values.get("HOST"), values.get("PORT")
        if host and not host.startswith("/"):
            try:
                infos = socket.getaddrinfo(host, port or None, type=socket.SOCK_STREAM)
            except OSError:
                continue
            found |= {info[4][:2] for info in infos} | {(host, int(port or 0))}
    return found
