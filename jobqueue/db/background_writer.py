"""A thread that writes what a process has counted, at intervals, on a session that is opened for each write."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from django.db import connections

#: between two writes; jittered by a fifth
FLUSH_SECONDS = 10.0
#: how long a process that ends waits for the last write
LAST_SECONDS = 2.0


class BackgroundWriter:
    """Calls `flush` every FLUSH_SECONDS, and a last time when it is closed. What it raises is logged once in a row.

    `is_expected(error)`: such errors are logged at DEBUG only, as whoever met them first has logged them.
    """

    def __init__(
        self,
        name: str,
        flush: Callable[[], None],
        complain: Callable[[int, BaseException], None],
        is_expected: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        self._name, self._flush, self._complain, self._is_expected = name, flush, complain, is_expected
        self._starting, self._over = threading.Lock(), threading.Event()
        self._failed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs. If the system has no room for it, the next call tries again."""
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread = thread
                try:
                    thread.start()
                except RuntimeError:
                    self._thread = None

    def close(self) -> None:
        """End the thread after a last write; wait up to LAST_SECONDS for it."""
        if (thread := self._thread) is not None:
            self._over.set()
            thread.join(LAST_SECONDS)

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(FLUSH_SECONDS * random.uniform(0.8, 1.2))
            try:
                self._flush()
                self._failed = False
            except BaseException as error:
                # Also SystemExit, which a receiver of a signal may raise: it would end this thread.
                quiet = self._failed or over or self._is_expected(error)
                self._complain(logging.DEBUG if quiet else logging.WARNING, error)
                self._failed = True
            finally:
                connections.close_all()
