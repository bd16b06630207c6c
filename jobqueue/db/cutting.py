"""Statements that a server does not answer: who waits for one cannot tell, so another thread cuts the connection."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("jobqueue.db")

SECONDS_MIN, SECONDS_MAX = 5.0, 600.0


class Wait:
    """Within the block another thread may cut() the connection that this thread uses; its statement then fails.

    The driver meets a lost connection, as if the server had gone.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        #: when the last statement was sent (monotonic)
        self.since = 0.0
        self.over = self.was_cut = False
        self._session: Any = None
        self._number = -1

    def __enter__(self) -> None:
        self.since = time.monotonic()
        self._look()
        self.connection.execute_wrappers.append(self._begin)

    def __exit__(self, *_: object) -> None:
        self.over = True
        self.connection.execute_wrappers.pop()

    def cut(self) -> bool:
        """Called by another thread: end the session, whose transaction the server undoes; whether that was done.

        The socket is shut down; the driver's object is left alone, for it may be in use.
        """
        since, session = self.since, self._session
        try:
            # A copy: meanwhile its thread may close the number, and the system give it to another file.
            copy = socket.socket(fileno=os.dup(self._number))
        except OSError:
            return False  # no connection, or none by a socket
        with copy:
            if self.over or self.since != since or self.connection.connection is not session:
                return False
            self.since, self.was_cut = time.monotonic(), True
            with suppress(OSError):
                copy.shutdown(socket.SHUT_RDWR)
        return True

    def end(self) -> None:
        """cut(), also of a connection without a socket: the thread is not to be heard of again."""
        if self.cut() or self.over or self._session is None:
            return
        if not hasattr(self._session, "fileno"):
            # SQLite: no server, and its own lock makes this safe.
            with suppress(Exception):
                self._session.close()

    def _begin(self, execute: Callable[..., Any], *statement: Any) -> Any:
        """A statement is sent now."""
        if self.connection.connection is not self._session:
            self._look()
        self.since = time.monotonic()
        return execute(*statement)

    def _look(self) -> None:
        # By its own thread: while mysqlclient waits for an answer, it tells no other one.
        session, number = self.connection.connection, -1
        with suppress(Exception):  # of a driver that has noticed the end of its session
            number = session.fileno()
        self._number, self._session = number, session


class Waits:
    """What threads of this process wait for; cut() ends what takes longer than `seconds`.

    Their work is then done again on another connection, as after any lost answer. Each cut doubles the time until the
    next one of that thread, up to ten minutes, until it gets an answer: behind a lock of the whole table the server
    would collect the sessions that were cut.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name, max(SECONDS_MIN, seconds)
        self._waits: set[_Timed] = set()
        # By the names of threads that have had no answer since a cut.
        self._limits: dict[str, float] = {}
        self._looked_at = time.monotonic()

    def watched(self, connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
        """Within the block each statement of this thread on `connection` is timed. Do nothing else in it for long."""
        return _Timed(connection, self)

    def begin(self, wait: _Timed) -> None:
        """Called by its thread."""
        self._waits.add(wait)

    def end(self, wait: _Timed) -> None:
        """Called by its thread."""
        self._waits.discard(wait)
        if self._limits and not wait.was_cut:
            self._limits.pop(wait.thread, None)

    def cut(self) -> None:
        """Called by another thread, at least every second."""
        now = time.monotonic()
        gap, self._looked_at = now - self._looked_at, now
        for wait in list(self._waits):
            if gap > SECONDS_MIN / 2:
                # This process stood still, or a job kept the interpreter: perhaps the answer is there, not read.
                wait.since = min(now, wait.since + gap)
            limit = self._limits.get(wait.thread, self._seconds)
            seconds = now - wait.since
            if seconds > limit and wait.cut():
                self._limits[wait.thread] = min(SECONDS_MAX, 2 * limit)
                logger.error(
                    "%s: the database has not answered for %.0f s (thread %s); cutting that connection, to try on "
                    "another one", self._name, seconds, wait.thread,
                )  # fmt: skip


class _Timed(Wait):
    """One of the Waits."""

    def __init__(self, connection: BaseDatabaseWrapper, waits: Waits) -> None:
        super().__init__(connection)
        self._waits, self.thread = waits, threading.current_thread().name

    def __enter__(self) -> None:
        super().__enter__()
        self._waits.begin(self)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._waits.end(self)


_waits: Waits | None = None
_UNWATCHED: AbstractContextManager[None] = nullcontext()


def watch(waits: Waits) -> None:
    """From now on statements of this process within watched() are among `waits`, which somebody is to cut()."""
    global _waits
    _waits = waits


def watched(connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
    """Within the block a statement on `connection` that is not answered fails at last, in a process that watches."""
    return _UNWATCHED if _waits is None else _waits.watched(connection)
