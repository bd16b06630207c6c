"""Whether a transaction of the caller is open on a connection, what waits for its commit, and what a session keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.dispatch import Signal

from jobqueue.signals import call_or_keep, send

T = TypeVar("T")


def in_callers_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether the next statement is in a transaction that the caller ends: inside atomic(), or autocommit is off."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.get_autocommit()


def in_open_transaction(using: str) -> bool:
    """The same for this thread's connection to `using`; the transaction around a test case does not count."""
    blocks = connections[using].atomic_blocks
    if blocks and getattr(blocks[-1], "_from_testcase", False):
        return False
    return in_callers_transaction(connections[using])


def after_commit(work: Callable[[], object], using: str) -> None:
    """Call `work` when the caller's transaction is committed, and never if it is rolled back; now if none is open.

    Now, too, where autocommit was turned off by hand: Django does not see that commit.
    """
    if in_open_transaction(using) and connections[using].in_atomic_block:
        transaction.on_commit(AfterCommit(work), using=using, robust=True)
    else:
        work()


class AfterCommit:
    """What waits for a commit. A class, so that jobqueue.testing can tell it from the on_commit() calls of others."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        # Django names a robust hook that raises by it, and a partial has none.
        self.__qualname__ = type(self).__qualname__

    def __call__(self) -> None:
        self._work()


def send_after_commit(signal: Signal, sender: type, *, using: str, **values: object) -> None:
    """Send a signal about a write to `using` as after_commit() calls; `using` is one of its values.

    In a block of held_back(), its end counts as the commit of the block's own transaction.
    """
    if signal.receivers:
        call_or_keep(partial(after_commit, partial(send, signal, sender, using=using, **values), using))


def in_manual_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether autocommit was turned off by hand; then the end of an outermost atomic() does not commit."""
    if connection.in_atomic_block:
        return not connection.commit_on_exit
    return in_callers_transaction(connection)


def in_test_case(connection: BaseDatabaseWrapper) -> bool:
    """Whether a test case has wrapped this connection in a transaction that it will roll back."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def once_per_session(connection: BaseDatabaseWrapper, name: str, make: Callable[[], T]) -> T:
    """The result of `make`, which is called once for each session of the driver; kept under `name`."""
    session, value = getattr(connection, name, (None, None))
    if session is None or session is not connection.connection:
        value = make()
        setattr(connection, name, (connection.connection, value))
    return value  # type: ignore[return-value]
