"""A limit of time for reads, so that a page or a command on a large table ends instead of hanging."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error, connections

from jobqueue.db import vendor
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
        """The error to raise."""
        return StatementTimeout(
            f"Reading took longer than {self.seconds:g} s and was stopped. Nothing was written. Try again when the "
            "database is less busy, or ask for less."
        )


@contextmanager
def time_limit(seconds: float, *, using: str) -> Iterator[TimeLimit]:
    """A block whose SELECTs the database stops after `seconds` each; with check() it limits the whole block.

    Raises StatementTimeout; a transaction of the caller stays usable. On MySQL the limit is max_execution_time, on
    MariaDB max_statement_time, on PostgreSQL statement_timeout; on SQLite a thread interrupts the statement.
    """
    found, limit = vendor(using), TimeLimit(seconds)
    try:
        with found.limit_reads(connections[using], seconds):
            yield limit
    except Error as error:
        if not found.is_stopped(error):
            raise
        raise limit.exceeded() from error
