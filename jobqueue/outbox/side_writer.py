"""Writes to the outbox beside a delivery that hangs, in a thread with a connection of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import Error, connections

from jobqueue.exceptions import DatabaseBusy

logger = logging.getLogger("jobqueue.outbox")

#: how long a caller waits for one write before it goes on without its result
WRITE_SECONDS = 5.0


class SideWriter:
    """Runs one write at a time; a database that hangs blocks the thread of the write and not the caller."""

    def __init__(self) -> None:
        self._writing: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def write(self, work: Callable[[], None], wait_seconds: float = WRITE_SECONDS) -> None:
        """Run `work` and wait up to `wait_seconds` for it; do nothing if an earlier write lasts longer than that."""
        if self._writing is not None:
            self._writing.join(wait_seconds)
            if self.is_busy:
                return
        self._writing = start_thread(lambda: _run(work))
        if wait_seconds and self._writing is not None:
            self._writing.join(wait_seconds)


def _run(work: Callable[[], None]) -> None:
    try:
        work()
    except (Error, DatabaseBusy) as error:
        # What was not written ends with the lease.
        logger.warning("the lease of a delivery under way could not be written: %s", error)
    except Exception:
        logger.exception("the lease of a delivery under way could not be written")
    finally:
        connections.close_all()


def start_thread(target: Callable[[], None]) -> threading.Thread | None:
    """Start a daemon thread; None where the process has no room for one."""
    try:
        thread = threading.Thread(target=target, name="jobqueue-relay-watch", daemon=True)
        thread.start()
    except RuntimeError as error:
        logger.warning("no room for the thread that renews the leases of deliveries: %s", error)
        return None
    return thread
