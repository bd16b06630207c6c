"""Statements that a server does not answer: who waits for one cannot tell, so another thread cuts the connection."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections

logger = logging.getLogger("jobqueue.worker")

SECONDS_MIN, SECONDS_MAX = 5.0, 600.0


class Waits:
    """What threads of this process wait for on `using`; cut() ends what takes longer than `seconds`.

    The driver then meets a lost connection, as if the server had gone, and the work is done again on another one. Each
    cut doubles the time until the next one, up to ten minutes, until an answer comes: behind a lock of the whole table
    the server would collect the sessions that were cut.
    """

    def __init__(self, name: str, using: str, seconds: float) -> None:
        self._name, self._using = name, using
        self._seconds = self._limit = max(SECONDS_MIN, seconds)
        self._waits: set[_Wait] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within the block each statement of this thread on the database is timed."""
        wait = _Wait(connections[self._using])
        self._waits.add(wait)
        try:
            with wait.connection.execute_wrapper(wait.begin):
                yield
        finally:
            wait.over = True
            self._waits.discard(wait)
        if not wait.was_cut:
            self._limit = self._seconds

    def cut(self) -> None:
        """Called by another thread, every now and then."""
        for wait in list(self._waits):
            seconds = time.monotonic() - wait.since
            if seconds > self._limit and wait.cut():
                self._limit = min(SECONDS_MAX, 2 * self._limit)
                logger.error(
                    "%s: the database has not answered for %.0f s; cutting that connection, to try on another one",
                    self._name,
                    seconds,
                )


class _Wait:
    """One thread's."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.since = time.monotonic()
        self.over = self.was_cut = False
        self._session: Any = None
        self._number = -1

    def begin(self, execute: Callable[..., Any], *statement: Any) -> Any:
        """A statement is sent now."""
        session = self.connection.connection
        if session is not self._session:
            # Asked here: while mysqlclient waits for an answer, it tells no other thread.
            self._number = session.fileno() if hasattr(session, "fileno") else -1
            self._session = session
        self.since = time.monotonic()
        return execute(*statement)

    def cut(self) -> bool:
        """End the connection under the driver that waits for it; whether that was done."""
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
