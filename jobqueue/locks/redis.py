"""redis_lock(): redis-py's lock with the interface of the other locks, and a fence."""

from __future__ import annotations

import logging
import math
import time
import uuid
from functools import cache
from typing import Any

from django.core.signals import setting_changed

from jobqueue.base.validation import check_seconds
from jobqueue.conf import load
from jobqueue.exceptions import InvalidValue, WrongSettings
from jobqueue.locks.entries import Entry
from jobqueue.locks.lock import TimedLock
from jobqueue.wakeup.redis_client import connect

logger = logging.getLogger("jobqueue.locks")

PREFIX = "jobqueue:lock:"
FENCE_PREFIX = "jobqueue:fence:"
WAIT_SECONDS = 5.0  # for a connection, and for each answer
# Counters begin at the microseconds since 1970, far above this; a lower counter is new or was lost.
_FRESH_BELOW = 10**15
#: how long the counter of fences is kept after its last use
FENCE_KEPT_SECONDS = 7 * 86_400
#: (name, token) of locks that this process requested and could not release, and when they end at the latest
_strays: dict[tuple[str, bytes], float] = {}
_STRAYS_MAX = 1000


def redis_lock(name: str, ttl_seconds: float, timeout_seconds: float | None = None) -> RedisLock:
    """redis-py's Lock on `name` (1-255 characters, exact), which ends by itself after `ttl_seconds`; with a fence.

    The server is JOBQUEUE["REDIS_URL"], or that of WAKEUP: a URL, or "cache:" and an alias of CACHES. A server that
    loses data, or fails over to a lagging replica, can grant the lock twice: use it where that costs work and not data,
    or check the fence.
    timeout_seconds: None waits, 0 tries once. Raises LockNotAcquired, WrongSettings, redis-py's RedisError.
    """
    return RedisLock(name, ttl_seconds, timeout_seconds)


class RedisLock(TimedLock):
    """A key of a Redis server: SET NX PX with a token, compared and deleted by redis-py's own scripts."""

    kind = "redis lock"

    def __init__(self, name: str, ttl_seconds: float, timeout_seconds: float | None) -> None:
        super().__init__(name, ttl_seconds, timeout_seconds)
        _check_milliseconds(self.ttl_seconds)
        self._client = _client(*_place())

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

    def _prepare(self, entry: Entry) -> None:
        super()._prepare(entry)
        # A token of ours: redis-py drops its own when an answer is lost.
        entry.token = uuid.uuid4().hex.encode()
        # thread_local=False: another thread of sync_to_async may release the lock.
        entry.session = self._client.lock(PREFIX + self.name, timeout=self.ttl_seconds, thread_local=False)

    def _attempt(self, entry: Entry, wait_seconds: float | None) -> bool:
        self._end_strays()
        asked = time.monotonic()
        if not entry.session.acquire(blocking=False, token=entry.token):
            return False
        fence = self._next_fence()
        if not entry.session.owned():
            # It ended before it had its fence: the next holder may have a lower one.
            return False
        entry.fence, entry.ends_at = fence, asked + self.ttl_seconds
        return True

    def _end_strays(self) -> None:
        """Release locks whose answer was lost: the server may have granted them."""
        for (name, token), until in list(_strays.items()):
            # Kept until its end at the latest: a server that was paused may still grant it.
            if name == self.name and (self._end(token) or time.monotonic() > until):
                _strays.pop((name, token), None)

    def _end(self, token: bytes) -> bool:
        """Delete the key if it holds `token`; whether it did."""
        from redis.exceptions import LockError

        try:
            self._client.lock(PREFIX + self.name, timeout=self.ttl_seconds, thread_local=False).do_release(token)
        except LockError:
            return False
        return True

    def _forget(self, entry: Entry) -> None:
        try:
            self._end(entry.token)
        except Exception as error:
            if len(_strays) < _STRAYS_MAX:
                _strays[self.name, entry.token] = time.monotonic() + self.ttl_seconds
            logger.warning("%s %r may still be held: %s. %s", self.kind, self.name, error, self.ends)

    def _next_fence(self) -> int:
        key = FENCE_PREFIX + self.name
        fence = self._add(key, 1)
        if fence < _FRESH_BELOW:
            # A new or lost counter begins at the server's clock, above every fence that was given out.
            seconds, micros = self._client.time()
            fence = self._add(key, seconds * 1_000_000 + micros)
        return fence

    def _add(self, key: str, number: int) -> int:
        """Add to a counter and extend its life; a counter that expires begins at the server's clock again."""
        with self._client.pipeline(transaction=True) as both:
            both.incrby(key, number)
            both.expire(key, math.ceil(max(FENCE_KEPT_SECONDS, 2 * self.ttl_seconds)))
            return int(both.execute()[0])

    def _give_back(self, entry: Entry) -> bool:
        return self._end(entry.token)


def _check_milliseconds(seconds: float) -> None:
    if seconds < 0.001:
        raise InvalidValue(f"ttl_seconds is {seconds}; Redis counts whole milliseconds. Nothing was changed.")


@cache
def _client(place: str, setting: str) -> Any:
    """The client of this process for `place`; threads and forked processes may share it."""
    return connect(place, WAIT_SECONDS, setting)


def _forget(*, setting: str, **_: object) -> None:
    if setting == "CACHES":
        _client.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.locks.redis")


def _place() -> tuple[str, str]:
    """Where the server is, and the setting that says so."""
    settings = load()
    if settings.redis_url is not None:
        return settings.redis_url, "JOBQUEUE['REDIS_URL']"
    if settings.wakeup not in ("auto", "off"):
        return settings.wakeup, "JOBQUEUE['WAKEUP']"
    raise WrongSettings(
        "redis_lock() needs a server: set JOBQUEUE['REDIS_URL'] to a redis://, rediss:// or unix:// URL, or to "
        "'cache:ALIAS' with an alias of CACHES."
    )
