"""The loop around a relay."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from threading import Event as Flag

from django.db import Error, connections

from jobqueue.db import fault_vendor
from jobqueue.exceptions import DatabaseBusy
from jobqueue.outbox.relay import Relay

logger = logging.getLogger("jobqueue.outbox")

_AWAY_SECONDS = 5.0


class DatabaseAway(Exception):
    """The database did not come back in time."""


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

    A database that is away is waited for: for db_retry_seconds, None = as long as it takes. Raises DatabaseAway.
    """
    away_since: float | None = None
    while not stop.is_set():
        try:
            relay.run_once()
        except (Error, DatabaseBusy) as error:
            if isinstance(error, Error) and fault_vendor(relay.using).fault(error) is None:
                raise
            now = time.monotonic()
            away_since = away_since or now
            if db_retry_seconds is not None and now - away_since > db_retry_seconds:
                raise DatabaseAway(str(error)) from error
            logger.warning("the database %r cannot be used (%s); trying again", relay.using, error)
            connections[relay.using].close()
            stop.wait(random.uniform(0.1, min(_AWAY_SECONDS, 0.2 + now - away_since)))
            continue
        away_since = None
        if relay.idle:
            on_idle()
            if drain:
                return
            stop.wait(interval_seconds * random.uniform(0.8, 1.2))
