"""Publish and subscribe of a Redis server that may be away at any time."""

from __future__ import annotations

import logging
import time
from functools import cache
from typing import Any

from jobqueue.wakeup.base import CHANNEL
from jobqueue.wakeup.redis_client import connect

logger = logging.getLogger("jobqueue.doorbell")

WAIT_SECONDS = 0.25  # the most that a ring may take to connect, and then to be answered
PAUSE_SECONDS = 10.0  # how long a failed process does without


class RedisBell:
    """One server. Threads and forked processes may share it: redis-py's pool sees to that."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None
        self._silent_until = 0.0
        self._told = False

    @staticmethod
    @cache
    def at(url: str) -> RedisBell:
        """The one bell of this process for `url`."""
        return RedisBell(url)

    def ring(self, queue: str) -> None:
        """PUBLISH; after a failure nothing is tried for 10 s."""
        if time.monotonic() < self._silent_until:
            return
        try:
            if self._client is None:
                self._client = connect(self._url, WAIT_SECONDS, "JOBQUEUE['DOORBELL']")
            self._client.publish(CHANNEL, queue)
        except Exception as error:
            # Whatever redis-py raises: the job is committed, and its enqueuer must not hear of this.
            self._silent_until = time.monotonic() + PAUSE_SECONDS
            if not self._told:
                logger.warning("JOBQUEUE['DOORBELL'] cannot be rung (%s); workers find new jobs when they poll", error)
            self._told = True
        else:
            if self._told:
                logger.info("JOBQUEUE['DOORBELL'] can be rung again")
            self._told = False

    def listen(self) -> RedisEar:
        """Raises what redis-py raises."""
        return RedisEar(self._url)


class RedisEar:
    """A subscription."""

    def __init__(self, url: str) -> None:
        # Commands of a listener may take their time; waiting for rings has its own limit.
        self._client = connect(url, 5.0, "JOBQUEUE['DOORBELL']")
        self._subscription = self._client.pubsub()
        self._subscription.subscribe(CHANNEL)
        self._asked = False

    def heard(self, seconds: float) -> list[str]:
        """Raises redis-py's ConnectionError when the server has gone."""
        queues = []
        message = self._subscription.get_message(timeout=seconds)
        while message is not None:
            self._asked = False
            if message["type"] == "message":
                data = message["data"]
                queues.append(data if isinstance(data, str) else data.decode(errors="replace"))
            message = self._subscription.get_message(timeout=0)
        return queues

    def check(self) -> None:
        """PING; heard() sees the answer. Raises TimeoutError when the last one was not answered."""
        if self._asked:
            raise TimeoutError("no answer to PING")
        self._asked = True
        self._subscription.ping()

    def close(self) -> None:
        """Give up the subscription and its connection."""
        self._subscription.close()
        self._client.close()
