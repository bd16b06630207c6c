"""What pages have read, kept for a moment for everybody who looks, so that ten open tabs cost the reads of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.core.cache import cache

from jobqueue.exceptions import StatementTimeout

T = TypeVar("T")
#: how long it is remembered that a read took too long, so that a slow database is not asked again by each who looks
SLOW_SECONDS = 15


def kept(name: str, read: Callable[[], T], seconds: float) -> T | None:
    """What read() gives, or gave to somebody in the last `seconds`; None if it took too long, now or shortly before.

    `name`: ASCII without spaces, and different for each thing that is read.
    """
    key = f"jobqueue-{name}"
    found: list[T | None] | None = cache.get(key)
    if found is None:
        try:
            found = [read()]
        except StatementTimeout:
            found = [None]
        cache.set(key, found, SLOW_SECONDS if found[0] is None else seconds)
    return found[0]
