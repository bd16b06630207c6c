"""A thread that writes what a process has counted, at intervals, on a session that is opened for each write."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from django.db import connections

from jobqueue.db import is_lost_connection
from jobqueue.db.outage import Outage

#: between two writes; jittered by a fifth
FLUSH_SECONDS = 10.0
#: how long a process that ends waits for the last write
LAST_SECONDS = 2.0


class BackgroundWriter:
    """Calls `flush` every FLUSH_SECONDS, and a last time when it is closed. What it raises is logged once in a row.

    A lost connection is logged at DEBUG only, as whoever lost it first has logged that.
    """

    def __init__(
        self, name: str, flush: Callable[[], None], using: Callable[[], str], *, what: str, logger: logging.Logger
    ) -> None:
        """`what` it writes, in log lines. `using()` is the database."""
        self._name, self._flush, self._using, self._what, self._logger = name, flush, using, what, logger
        self._starting, self._over = threading.Lock(), threading.Event()
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
        over, rhythm = False, f"every {FLUSH_SECONDS:.0f} s"
        outage = Outage("this process", f"write {self._what}", self._using(), rhythm=rhythm, logger=self._logger)
        while not over:
            over = self._over.wait(FLUSH_SECONDS * random.uniform(0.8, 1.2))
            try:
                self._flush()
                outage.over()
            except BaseException as error:
                # Also SystemExit, which a receiver of a signal may raise: it would end this thread.
                outage.met(error, quiet=over or is_lost_connection(error, self._using()))
            finally:
                connections.close_all()
