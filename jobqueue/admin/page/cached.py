"""What pages have read, kept in the cache of Django for a moment, so that ten open tabs cost the reads of one.

A cache that fails costs reads, not the page."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from django.core.cache import cache

from jobqueue import __version__
from jobqueue.exceptions import StatementTimeout

T = TypeVar("T")
logger = logging.getLogger("jobqueue.admin")
#: how long it is remembered that a read took too long, so that a slow database is not asked again by each who looks
SLOW_SECONDS = 15
#: how long a process does not use a cache that has failed: each call of a cache that is down may take its full timeout
WITHOUT_SECONDS = 30.0


def kept(name: str, read: Callable[[], T], seconds: float) -> T | None:
    """What read() gives, or gave to somebody in the last `seconds`; None if it took too long, now or shortly before.

    `name`: ASCII without spaces, and different for each thing that is read.
    """
    # With the version: while servers are updated, an older one may not know what a newer one has written.
    key = f"jobqueue-{__version__}-{name}"
    found: list[T | None] | None = safely.ask(lambda: cache.get(key))
    if found is None:
        try:
            found = [read()]
        except StatementTimeout:
            found = [None]
        value, until = found, SLOW_SECONDS if found[0] is None else seconds
        safely.ask(lambda: cache.set(key, value, until))
    return found[0]


class Safely:
    """Calls the cache of a process. `until`: when a cache that has failed is called again."""

    def __init__(self) -> None:
        self.until: float | None = None

    def ask(self, call: Callable[[], list[T | None] | None]) -> list[T | None] | None:
        """What the cache answers; None if it fails, or has failed in the last WITHOUT_SECONDS."""
        if self.until is not None and time.monotonic() < self.until:
            return None
        try:
            found = call()
        except Exception:  # each backend raises errors of its own
            self.until = time.monotonic() + WITHOUT_SECONDS
            logger.warning(
                "Django's cache failed; pages read their figures from the database for each who looks. "
                "They ask the cache again in %d s.",
                WITHOUT_SECONDS,
                exc_info=True,
            )
            return None
        self.until = None
        return found


safely = Safely()
