"""Move the queue's clock forward: the database's clock, as the statements of one connection read it.

Imports no model, so that a conftest.py can import travel() before the apps are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.db import connections

from jobqueue.base.validation import check_instant, check_seconds
from jobqueue.db import vendor_of
from jobqueue.db.alias import alias_of
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidType, InvalidValue


class Clock:
    """The queue's clock on one connection of this thread; it may be ahead of the server's."""

    def __init__(self, using: str) -> None:
        self._connection, self.using = connections[using], using
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[Clock]:
        """Within the block every statement of this connection reads the moved clock."""
        with self._connection.execute_wrapper(self._execute):
            yield self

    def now(self) -> datetime:
        """The time of this clock, as an aware datetime in UTC."""
        return read_now(self.using)

    def forward(self, by: timedelta | float) -> None:
        """Move the clock forward by a timedelta or seconds."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        self._seconds += check_seconds(seconds, "the time to travel", zero=True)

    def move_to(self, instant: datetime) -> None:
        """Move the clock forward to `instant`. Raises InvalidValue if that is in the past."""
        ahead = (check_instant(instant, "the instant to travel to") - self.now()).total_seconds()
        if ahead < 0:
            raise InvalidValue(f"{instant} is in the past; the queue's clock can only be moved forward.")
        self.forward(ahead)

    def reach(self, instant: datetime) -> None:
        """Move the clock forward to `instant`; do nothing if that is in the past."""
        self._seconds += max(0.0, (instant - self.now()).total_seconds())

    def _execute(self, execute: Callable[..., object], sql: str, *rest: object) -> object:
        if self._seconds:
            sql = vendor_of(self._connection).later_sql(sql, self._seconds)
        return execute(sql, *rest)


@contextmanager
def travel(
    by: timedelta | float | None = None, *, to: datetime | None = None, using: str | None = None
) -> Iterator[Clock]:
    """Move the queue's clock forward within the block: `by` a timedelta or seconds, or `to` an aware datetime.

    Due times, back-off, leases and dedupe keys follow this clock. Only this thread's connection to the queue's database
    is affected, not Python's clock, other connections or worker processes. Nested blocks add up. Yields a Clock with
    now(), forward(by) and move_to(instant). Raises InvalidValue for a time in the past.
    """
    if (by is None) == (to is None):
        raise InvalidType("travel() takes either a duration or to=an aware datetime.")
    clock = Clock(alias_of(using))
    # Connect first: moving the clock depends on the kind of server, which is known once there is a connection.
    connections[clock.using].ensure_connection()
    with clock.running():
        if to is not None:
            clock.move_to(to)
        elif by is not None:
            clock.forward(by)
        yield clock
