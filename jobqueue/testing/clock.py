"""The queue's clock, moved forward: the database's own, as the statements of one connection see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.db import connections

from jobqueue.db.alias import alias_of
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.testing.simulated import later
from jobqueue.validation import check_instant, check_seconds


class Clock:
    """How far the queue's clock on one connection of this thread is ahead of the server's."""

    def __init__(self, using: str) -> None:
        self._connection, self.using = connections[using], using
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[Clock]:
        """Within the block every statement of this connection sees the moved clock."""
        with self._connection.execute_wrapper(self._execute):
            yield self

    def now(self) -> datetime:
        """What the clock shows, aware UTC."""
        return read_now(self.using)

    def forward(self, by: timedelta | float) -> None:
        """Move it on."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        self._seconds += check_seconds(seconds, "the time to travel", zero=True)

    def move_to(self, instant: datetime) -> None:
        """Move it on to `instant`. Raises InvalidValue if that has passed."""
        ahead = (check_instant(instant, "the instant to travel to") - self.now()).total_seconds()
        if ahead < 0:
            raise InvalidValue(f"{instant} has passed; the queue's clock only goes forward, as a server's does.")
        self.forward(ahead)

    def reach(self, instant: datetime) -> None:
        """Move it on to `instant`, unless that has passed."""
        self._seconds += max(0.0, (instant - self.now()).total_seconds())

    def _execute(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        shifted = later(self._connection, sql, self._seconds) if self._seconds else sql
        return execute(shifted, params, many, context)


@contextmanager
def travel(
    by: timedelta | float | None = None, *, to: datetime | None = None, using: str | None = None
) -> Iterator[Clock]:
    """Within the block the queue's clock is ahead: `by` a timedelta or seconds, or it begins at the instant `to`.

    Due times, back-off, leases and dedupe keys follow it. It is the clock of this thread's connection to the queue's
    database: Python's own clock, other connections and real workers stay where they are. Blocks nest and add up.
    Gives a Clock with now(), forward(by) and move_to(instant). Raises InvalidValue for a time that has passed.
    """
    if (by is None) == (to is None):
        raise InvalidType("travel() takes one of: how far, or to=an aware datetime.")
    clock = Clock(alias_of(using))
    # The statements of connecting would ask what kind of server this is, which is told by connecting.
    connections[clock.using].ensure_connection()
    with clock.running():
        if to is not None:
            clock.move_to(to)
        elif by is not None:
            clock.forward(by)
        yield clock
