"""A second session, for rows that must be committed even if the caller's transaction is rolled back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, OperationalError, connections

#: how long it is kept for the next use
IDLE_SECONDS = 2.0


class Beside:
    """One session per database in this process, for one thread at a time, closed soon after its last use."""

    def __init__(self) -> None:
        self._using = threading.Lock()
        self._sessions: dict[tuple[str, str], Any] = {}
        self._last_use = 0.0
        self._closer: threading.Timer | None = None

    @contextmanager
    def cursor(self, alias: str) -> Iterator[Any]:
        """A cursor in autocommit; None where the server takes no further session."""
        with self._using:
            session = self._session(alias)
            if session is None:
                yield None
                return
            try:
                with session.cursor() as cursor:
                    yield cursor
            except Error:
                # After any error the next use opens a new session.
                self._close()
                raise
            self._last_use = time.monotonic()
            self._close_later()

    def _session(self, alias: str) -> Any:
        key = (alias, str(connections.settings[alias]["NAME"]))
        if key in self._sessions:
            return self._sessions[key]
        session: Any = connections.create_connection(alias)
        session.inc_thread_sharing()
        try:
            session.ensure_connection()
            session.set_autocommit(True)
        except OperationalError:
            session.close()
            return None
        self._sessions[key] = session
        return session

    def _close_later(self) -> None:
        if self._closer is not None:
            return
        closer = threading.Timer(IDLE_SECONDS, self._close_if_idle)
        closer.daemon = True
        try:
            closer.start()
            self._closer = closer
        except RuntimeError:
            # No thread can be started.
            self._close()

    def _close_if_idle(self) -> None:
        with self._using:
            self._closer = None
            if time.monotonic() - self._last_use >= IDLE_SECONDS:
                self._close()
            else:
                self._close_later()

    def _close(self) -> None:
        while self._sessions:
            _, session = self._sessions.popitem()
            session.close()


_inherited: list[Beside] = []
_beside = Beside()


def cursor_beside(alias: str) -> Any:
    """A `with` block with a cursor of this process's second session; None where the server accepts no more sessions."""
    return _beside.cursor(alias)


def _begin_anew() -> None:
    """The sessions of a forked process are its parent's: closing one, or letting it be collected, would end it."""
    global _beside
    _inherited.append(_beside)
    _beside = Beside()


os.register_at_fork(after_in_child=_begin_anew)
