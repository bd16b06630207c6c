"""Checks after a function of the user: it must leave no transaction open, and swallow no error that rolled one back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from jobqueue.db import fault_vendor, vendor


class LeftOpen(TransactionManagementError):
    """A function returned without ending its transaction; the transaction is rolled back."""


@contextmanager
def close_left_open(using: str) -> Iterator[None]:
    """A block of user code. A transaction that it leaves open in this thread is rolled back, and the connection closed.

    Raises LeftOpen then, unless the block itself raises. Costs no round trip; on MySQL and MariaDB one or two if the
    block ran other statements on `using` than those that read and write rows.
    """
    before = {connection.alias: len(connection.atomic_blocks) for connection in connections.all(initialized_only=True)}
    words: list[str] = []

    def notice(execute: Callable[..., object], sql: object, *rest: object) -> object:
        words.append(str(sql).lstrip()[:12].partition(" ")[0].upper())
        return execute(sql, *rest)

    try:
        with connections[using].execute_wrapper(notice):
            yield
    except BaseException:
        _tidy(before, words)
        raise
    if left := _tidy(before, words):
        raise LeftOpen(
            f"it returned and left a transaction, or locked tables, open on {', '.join(map(repr, left))}. "
            "What it wrote there is undone, and the connection closed. Use transaction.atomic() as a with block."
        )


def _tidy(before: dict[str, int], words: list[str]) -> list[str]:
    """Roll back and close what is open; returns the aliases of those connections."""
    left = []
    for connection in connections.all(initialized_only=True):
        depth = before.get(connection.alias, 0)
        if _is_open(connection, depth, words):
            left.append(connection.alias)
            _undo(connection, depth)
    return left


def _is_open(connection: BaseDatabaseWrapper, depth: int, words: list[str]) -> bool:
    if len(connection.atomic_blocks) > depth:
        return True
    if connection.connection is None or connection.in_atomic_block:
        return False
    if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return True
    try:
        return fault_vendor(connection.alias).is_left_open(connection, words)
    except Exception:
        # The session cannot be used any more.
        return True


def _undo(connection: BaseDatabaseWrapper, depth: int) -> None:
    error = LeftOpen("undone")
    while len(connection.atomic_blocks) > depth:
        with suppress(Exception):
            connection.atomic_blocks[-1].__exit__(LeftOpen, error, None)
    if depth:
        return
    with suppress(Exception):
        connection.close()
    if connection.connection is not None or connection.in_atomic_block:
        del connections[connection.alias]


@contextmanager
def raise_swallowed_errors(using: str) -> Iterator[None]:
    """A block inside a transaction: raises at its end an error that it swallowed and that rolled the transaction back.

    Without it the end would look like a commit: a transaction that Django has marked for a rollback, or that the server
    has given up, ends without an error. set_rollback(True) without an error stays as it is: the caller wants that.
    """
    connection, errors = connections[using], list[Error]()

    def watch(execute: Callable[..., object], *statement: object) -> object:
        try:
            return execute(*statement)
        except Error as error:
            errors.append(error)
            raise

    with connection.execute_wrapper(watch):
        yield
    cause = vendor(using).locks.rollback_cause(connection, errors)
    if cause is None and errors and transaction.get_rollback(using=using):
        cause = errors[-1]
    if cause is not None:
        cause.add_note(
            "This was caught, but it has undone the whole transaction: nothing is stored. "
            "Put what may fail into a transaction.atomic() of its own."
        )
        raise cause
