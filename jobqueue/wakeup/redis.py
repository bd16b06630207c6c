"""Wake-ups by PUBLISH and SUBSCRIBE on a Redis server, which may be unreachable at any time."""

from __future__ import annotations

import logging
import time
from functools import cache
from typing import TYPE_CHECKING

from django.core.signals import setting_changed

from jobqueue.wakeup.base import CHANNEL
from jobqueue.wakeup.redis_client import connect

if TYPE_CHECKING:
    from redis import Redis

logger = logging.getLogger("jobqueue.wakeup")

WAIT_SECONDS = 0.25  # limit for connecting, and again for the server's answer
PAUSE_SECONDS = 10.0  # after a failure nothing is sent for this long


class RedisNotifier:
    """One server. May be shared by threads and forked processes, because redis-py's connection pool may."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._client: Redis | None = None
        self._paused_until = 0.0
        self._failed = False

    @staticmethod
    @cache
    def at(place: str) -> RedisNotifier:
        """The only notifier of this process for `place`, a URL or "cache:ALIAS"."""
        return RedisNotifier(place)

    def notify(self, queue: str) -> None:
        """PUBLISH. After a failure nothing is tried for 10 s."""
        if time.monotonic() < self._paused_until:
            return
        try:
            if self._client is None:
                self._client = connect(self._place, WAIT_SECONDS, "JOBQUEUE['WAKEUP']")
            self._client.publish(CHANNEL, queue)
        except Exception as error:
            # Whatever redis-py raises: the job is committed, so its enqueuer must not see an error.
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            if not self._failed:
                logger.warning("no wake-up was sent to JOBQUEUE['WAKEUP'] (%s); workers poll until it works", error)
            self._failed = True
        else:
            if self._failed:
                logger.info("wake-ups are sent to JOBQUEUE['WAKEUP'] again")
            self._failed = False

    def subscribe(self) -> RedisSubscription:
        """Raises what redis-py raises."""
        return RedisSubscription(self._place)


class RedisSubscription:
    """A connection of its own that has subscribed to the channel."""

    def __init__(self, place: str) -> None:
        # For commands of the subscriber, which is in no hurry; receive() has its own limit.
        self._client = connect(place, 5.0, "JOBQUEUE['WAKEUP']")
        self._pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        self._pubsub.subscribe(CHANNEL)
        self._pinged = False

    def receive(self, seconds: float) -> list[str]:
        """Raises redis-py's ConnectionError when the connection is lost."""
        queues = []
        message = self._pubsub.get_message(timeout=seconds)
        while message is not None:
            self._pinged = False
            if message["type"] == "message":
                data = message["data"]
                queues.append(data if isinstance(data, str) else data.decode(errors="replace"))
            message = self._pubsub.get_message(timeout=0)
        return queues

    def check(self) -> None:
        """PING; receive() reads the answer. Raises TimeoutError when the previous PING was not answered."""
        if self._pinged:
            raise TimeoutError("no answer to PING")
        self._pinged = True
        self._pubsub.ping()

    def close(self) -> None:
        self._pubsub.close()
        self._client.close()


def _forget(*, setting: str, **_: object) -> None:
    if setting == "CACHES":
        RedisNotifier.at.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.wakeup.redis")
