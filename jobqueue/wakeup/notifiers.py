"""How wake-ups travel: LISTEN and NOTIFY on the queue's own database, or PUBLISH and SUBSCRIBE on a Redis server."""

from __future__ import annotations

import logging
import time
from functools import cache
from typing import TYPE_CHECKING, Protocol

from django.core.signals import setting_changed
from django.db import Error, connections

from jobqueue.db import vendor, vendor_of
from jobqueue.db.retry import retry_transient
from jobqueue.db.sessions import ping
from jobqueue.db.time_limit import watched
from jobqueue.exceptions import DatabaseBusy, NotSupported
from jobqueue.wakeup.redis_client import connect

if TYPE_CHECKING:
    from redis import Redis


#: the channel of all wake-ups; the text of a message is the queue's name
CHANNEL = "jobqueue"
logger = logging.getLogger("jobqueue.wakeup")
WAIT_SECONDS = 0.25  # limit for connecting, and again for the server's answer
PAUSE_SECONDS = 10.0  # after a failure nothing is sent for this long


class Subscription(Protocol):
    """A connection that receives wake-ups, for one thread. Every method may raise what its driver raises."""

    def receive(self, seconds: float) -> list[str]:
        """The queues named by the messages since the last call; waits up to `seconds` for the first one."""

    def check(self) -> None:
        """Send a request, so that a connection that is no longer alive raises here or in receive()."""

    def close(self) -> None:
        """Close the connection."""


class Notifier(Protocol):
    """Sends wake-ups to workers in other processes."""

    def notify(self, queue: str) -> None:
        """Send the queue's name to every subscriber. Never raises, and returns within a fraction of a second."""

    def subscribe(self) -> Subscription:
        """Open a new connection that receives. Raises NotSupported where this can never work."""


class PostgresNotifier:
    """Notifies on the caller's connection; each subscription has its own."""

    def __init__(self, using: str) -> None:
        self._using = using

    def notify(self, queue: str) -> None:
        """NOTIFY in its own transaction, which writes nothing: one round trip and no wait for the disk."""
        try:
            # Retried, because the caller continues after its commit and must not be left with a dead connection.
            retry_transient(
                "notify",
                lambda: vendor(self._using).notify(connections[self._using], CHANNEL, queue),
                using=self._using,
            )
        except (Error, DatabaseBusy) as error:
            logger.warning("workers could not be notified of a new job (%s); they find it at their next poll", error)

    def subscribe(self) -> PostgresSubscription:
        """Raises django.db.Error when the database is unreachable."""
        return PostgresSubscription(self._using)


class PostgresSubscription:
    """A session made from Django's settings, not pooled and in autocommit mode.

    Raises NotSupported behind a pooler: the pooler would lend the listening session to other clients.
    """

    def __init__(self, using: str) -> None:
        self._connection = connections[using].copy()
        settings = self._connection.settings_dict
        settings["AUTOCOMMIT"] = True
        settings["OPTIONS"].pop("pool", None)
        self._vendor = vendor_of(self._connection)
        try:
            with watched(self._connection):
                pooled = self._vendor.is_pooled(self._connection)
            if pooled:
                raise NotSupported(
                    f"the database {using!r} is reached through a pooler such as PgBouncer, which delivers "
                    "notifications to whichever client holds the session. Workers poll; for wake-ups configure an "
                    "alias that connects to the server directly, or use Redis."
                )
            with watched(self._connection):
                self._vendor.listen(self._connection, CHANNEL)
        except BaseException:
            self._connection.close()
            raise

    def receive(self, seconds: float) -> list[str]:
        """Raises django.db.Error when the session has ended."""
        return self._vendor.notifications(self._connection, seconds)

    def check(self) -> None:
        """Run a statement: nothing else fails on a connection that a firewall has dropped silently."""
        with watched(self._connection):
            ping(self._connection)

    def close(self) -> None:
        self._connection.close()


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


setting_changed.connect(_forget, dispatch_uid="jobqueue.wakeup.notifiers")
