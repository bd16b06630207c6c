"""Wake-ups by LISTEN and NOTIFY on the queue's own database."""

from __future__ import annotations

import logging

from django.db import Error, connections

from jobqueue.db import vendor, vendor_of
from jobqueue.db.retry import retry_transient
from jobqueue.db.sockets import ping
from jobqueue.db.stuck_statements import watched
from jobqueue.exceptions import DatabaseBusy, NotSupported
from jobqueue.wakeup.base import CHANNEL

logger = logging.getLogger("jobqueue.wakeup")


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
