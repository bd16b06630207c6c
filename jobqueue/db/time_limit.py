"""Limits of time, so that a page or a command ends instead of hanging: on a large table, or one that is locked."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from jobqueue.db import vendor, vendor_of
from jobqueue.db.retry import LOCK_TRIES
from jobqueue.exceptions import StatementTimeout


class TimeLimit:
    """The limit of a block of several reads."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._until = seconds, time.monotonic() + seconds

    def check(self) -> None:
        """Raise StatementTimeout if the time is over. Call it between two statements."""
        if time.monotonic() > self._until:
            raise self.exceeded()

    def exceeded(self) -> StatementTimeout:
        return StatementTimeout(
            f"Reading took longer than {self.seconds:g} s and was stopped. Nothing was written. Try again when the "
            "database is less busy, or ask for less."
        )


#: how long a page or a command that may write waits for each lock, and for how long it tries a transaction again
LOCK_SECONDS, TRIES_SECONDS = 1.0, 2.5


#: set on a connection within time_limit(together=): until when (monotonic) the limits of blocks within it may reach
_TOGETHER = "_jobqueue_time_limit"
#: what a block within it has at least
LEAST_SECONDS = 0.1


@contextmanager
def time_limit(seconds: float, *, using: str, together: float | None = None) -> Iterator[TimeLimit]:
    """A block whose SELECTs the database stops after `seconds` each; with check() it limits the whole block.

    After `together` seconds, blocks within it have LEAST_SECONDS each: those of a page that goes on after one of them.
    Raises StatementTimeout; a transaction of the caller stays usable. On MySQL the limit is max_execution_time, on
    MariaDB max_statement_time, on PostgreSQL statement_timeout; on SQLite a thread interrupts the statement.
    """
    connection = connections[using]
    before: float = getattr(connection, _TOGETHER, math.inf)
    seconds = min(seconds, max(LEAST_SECONDS, before - time.monotonic()))
    found, limit = vendor(using), TimeLimit(seconds)
    if together is not None:
        setattr(connection, _TOGETHER, min(before, time.monotonic() + together))
    try:
        with found.limit_reads(connection, seconds):
            yield limit
    except Error as error:
        if found.is_stopped(error):
            raise limit.exceeded() from error
        if not found.waited_too_long(error):
            raise
        raise StatementTimeout(
            f"A read waited in vain for a lock: {error}. Nothing was written. Look for what holds it, or try again "
            "later."
        ) from error
    finally:
        setattr(connection, _TOGETHER, before)


@contextmanager
def lock_limit(seconds: float = LOCK_SECONDS, *, using: str) -> Iterator[None]:
    """A block of which no statement, reading or writing, waits for a lock for longer than that, also of a whole table.

    Those of this thread, on the session to `using` that it has and on those that it opens. No statement is stopped that
    works; a transaction of ours that meets locks is tried again for TRIES_SECONDS. Behind a pooler of PostgreSQL waits
    have no limit.
    """
    own = connections[using]
    before = getattr(own, LOCK_TRIES, math.inf)
    with ExitStack() as stack:

        def limit(connection: BaseDatabaseWrapper, **_: object) -> None:
            # A session without the limit works, and one that is lost already is noticed by the next statement.
            with suppress(Error):
                if connection is own:
                    stack.enter_context(vendor_of(own).limit_waits(own, seconds))

        connection_created.connect(limit)
        setattr(own, LOCK_TRIES, TRIES_SECONDS)
        try:
            if own.connection is not None:
                limit(own)
            yield
        finally:
            connection_created.disconnect(limit)
            setattr(own, LOCK_TRIES, before)
