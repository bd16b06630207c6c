"""LISTEN and NOTIFY of the queue's own database."""

from __future__ import annotations

import logging

from django.db import Error, connections

from jobqueue.db import vendor, vendor_of
from jobqueue.db.cutting import watched
from jobqueue.db.retry import retry_transient
from jobqueue.doorbell.bell import CHANNEL
from jobqueue.exceptions import DatabaseBusy, NotSupported

logger = logging.getLogger("jobqueue.doorbell")


class NotifyBell:
    """Rings on the caller's connection, listens on one of its own."""

    def __init__(self, using: str) -> None:
        self._using = using

    def ring(self, queue: str) -> None:
        """A transaction of its own that writes nothing, so it costs a round trip and no wait for the disk."""
        try:
            # The caller goes on after its commit: it must not meet a dead session that was ours to find.
            retry_transient(
                lambda: vendor(self._using).notify(connections[self._using], CHANNEL, queue), using=self._using
            )
        except (Error, DatabaseBusy) as error:
            logger.warning("workers could not be told of a new job (%s); they find it when they poll", error)

    def listen(self) -> NotifyEar:
        """Raises django.db.Error when the database is away."""
        return NotifyEar(self._using)


class NotifyEar:
    """A plain session made from Django's settings: not pooled, in autocommit mode.

    Raises NotSupported behind a pooler: LISTEN would stay with a session that the pooler lends to others.
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
                    f"a pooler such as PgBouncer stands between this process and the database {using!r}, and what the "
                    "server sends would go to whoever has the session then. Workers poll; for rings give them an alias "
                    "that goes to the server directly, or use Redis."
                )
            with watched(self._connection):
                self._vendor.listen(self._connection, CHANNEL)
        except BaseException:
            self._connection.close()
            raise

    def heard(self, seconds: float) -> list[str]:
        """Raises django.db.Error when the session has ended."""
        return self._vendor.heard(self._connection, seconds)

    def check(self) -> None:
        """A statement: on a connection that a firewall has forgotten nothing else would ever fail."""
        with watched(self._connection), self._connection.cursor() as cursor:
            cursor.execute("SELECT 1")

    def close(self) -> None:
        """End the session."""
        self._connection.close()
