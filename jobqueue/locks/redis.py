"""redis_lock(): redis-py's lock with the manners of the others, and a fence."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from jobqueue.conf import load
from jobqueue.exceptions import InvalidValue
from jobqueue.locks.entries import Entry
from jobqueue.locks.timed import TimedLock
from jobqueue.names import check_seconds
from jobqueue.redis_client import connect

PREFIX = "jobqueue:lock:"
FENCE_PREFIX = "jobqueue:fence:"
WAIT_SECONDS = 5.0  # for a connection, and for each answer
# Microseconds since 1970 are far above it, and a counter that began at them will not come down to it.
_FRESH_BELOW = 10**15


def redis_lock(name: str, ttl_seconds: float, timeout_seconds: float | None = None) -> RedisLock:
    """redis-py's Lock on `name` (1-255 characters, exact), which ends by itself after `ttl_seconds`; with a fence.

    The server is JOBQUEUE["REDIS_URL"], or DOORBELL where that is a URL. One server that forgets, or fails over to a
    replica that lags, can let two holders in: use it where that costs work and not data, or check the fence.
    timeout_seconds: None waits, 0 tries once. Raises LockNotAcquired, ImproperlyConfigured, redis-py's RedisError.
    """
    return RedisLock(name, ttl_seconds, timeout_seconds)


class RedisLock(TimedLock):
    """A key of a Redis server: SET NX PX with a token, compared and deleted by redis-py's own scripts."""

    kind = "redis lock"

    def __init__(self, name: str, ttl_seconds: float, timeout_seconds: float | None) -> None:
        super().__init__(name, ttl_seconds, timeout_seconds)
        _check_milliseconds(self.ttl_seconds)
        self._client = _client(_url())

    def _renew(self, entry: Entry, ttl_seconds: float | None) -> None:
        _check_milliseconds(self.ttl_seconds if ttl_seconds is None else check_seconds(ttl_seconds, "ttl_seconds"))
        super()._renew(entry, ttl_seconds)

    def _prolong(self, entry: Entry, seconds: float) -> bool:
        from redis.exceptions import LockError

        try:
            entry.session.extend(seconds, replace_ttl=True)
        except LockError:
            return False
        return True

    def _attempt(self, entry: Entry, wait_seconds: float | None) -> bool:
        # Not the thread's own token: a release may come from another thread of sync_to_async.
        lock = self._client.lock(PREFIX + self.name, timeout=self.ttl_seconds, thread_local=False)
        asked = time.monotonic()
        entry.session = lock
        if not lock.acquire(blocking=False):
            return False
        fence = self._next_fence()
        if not lock.owned():
            # It ran out before it had its number: the next holder may have a lower one.
            return False
        entry.fence, entry.ends_at = fence, asked + self.ttl_seconds
        return True

    def _next_fence(self) -> int:
        key = FENCE_PREFIX + self.name
        fence = int(self._client.incr(key))
        if fence < _FRESH_BELOW:
            # A new counter, or one that was lost: it begins at the server's clock, beyond all that were handed out.
            seconds, micros = self._client.time()
            fence = int(self._client.incrby(key, seconds * 1_000_000 + micros))
        return fence

    def _give_back(self, entry: Entry) -> bool:
        from redis.exceptions import LockError

        try:
            entry.session.release()
        except LockError:
            return False
        return True


def _check_milliseconds(seconds: float) -> None:
    if seconds < 0.001:
        raise InvalidValue(f"ttl_seconds is {seconds}; Redis counts whole milliseconds. Nothing was changed.")


@cache
def _client(url: str) -> Any:
    """The one client of this process for `url`; threads and forked processes may share it."""
    return connect(url, WAIT_SECONDS, "the URL of redis_lock()")


def _url() -> str:
    settings = load()
    if settings.redis_url is not None:
        return settings.redis_url
    if settings.doorbell not in ("auto", "off"):
        return settings.doorbell
    raise ImproperlyConfigured(
        "redis_lock() needs a server: set JOBQUEUE['REDIS_URL'] to a redis://, rediss:// or unix:// URL."
    )
