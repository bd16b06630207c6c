"""A relay in every worker process, so that a project with workers needs no process of its own for its outbox."""

from __future__ import annotations

import logging
import threading

from django.db import connections

from jobqueue.conf import load
from jobqueue.outbox import Relay, running

logger = logging.getLogger("jobqueue.outbox")

INTERVAL_SECONDS = 0.5
_RESTART_SECONDS = 10.0
#: how long the end of a worker waits for the delivery under way; its lease runs out by itself
_GRACE_SECONDS = 5.0


class Relaying:
    """A thread, if JOBQUEUE["OUTBOX"] asks for one."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobqueue-relay", daemon=True)

    def start(self) -> None:
        """Begin, where workers are to relay."""
        settings = load().outbox
        if settings is not None and settings.in_workers:
            self._thread.start()

    def stop(self) -> None:
        """End after the delivery under way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_GRACE_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            relay = None
            try:
                relay = Relay(self._using, stopping=self._stop.is_set)
                running.run(relay, self._stop, interval_seconds=INTERVAL_SECONDS)
            except Exception:
                logger.exception("the relay of this worker failed; it begins again")
                self._stop.wait(_RESTART_SECONDS)
            finally:
                if relay is not None:
                    relay.close()
                connections.close_all()
