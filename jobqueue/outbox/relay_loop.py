"""The loop of a relay: run_once() until it is to stop."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from threading import Event as Flag

from django.db import Error, connections

from jobqueue.backoff import Backoff
from jobqueue.db import is_refusal
from jobqueue.exceptions import DatabaseBusy
from jobqueue.outbox.relay import Relay

logger = logging.getLogger("jobqueue.outbox")

_PAUSES = Backoff(base_seconds=0.2, cap_seconds=5.0)


class DatabaseUnreachable(Exception):
    """The database was unreachable for longer than db_retry_seconds."""


def run(
    relay: Relay,
    stop: Flag,
    *,
    interval_seconds: float,
    drain: bool = False,
    db_retry_seconds: float | None = None,
    on_idle: Callable[[], None] = lambda: None,
) -> None:
    """Relay until `stop` is set, or with `drain` until nothing is due; waits about `interval_seconds` when idle.

    While the database is unreachable it retries for db_retry_seconds (None: for ever), then raises DatabaseUnreachable.
    """
    failures, failed_since = 0, 0.0
    while not stop.is_set():
        try:
            relay.run_once()
        except (Error, DatabaseBusy) as error:
            if is_refusal(error, relay.using):
                raise
            now = time.monotonic()
            failed_since = failed_since if failures else now
            failures += 1
            if db_retry_seconds is not None and now - failed_since > db_retry_seconds:
                raise DatabaseUnreachable(str(error)) from error
            logger.warning("the database %r cannot be used (%s); trying again", relay.using, error)
            connections[relay.using].close()
            stop.wait(_PAUSES.delay_seconds(failures))
            continue
        failures = 0
        if relay.idle:
            on_idle()
            if drain:
                return
            stop.wait(interval_seconds * random.uniform(0.8, 1.2))
