"""The longest transaction of a server while something runs, by the server's own account."""

from __future__ import annotations

import threading
import time

from django.db import connection

from tests.proofs.schedules.rows import run
from tests.settings import VENDOR

#: between two looks; a transaction may have been longer than it was seen by so much
LOOK_SECONDS = 0.05
_INNODB = "SELECT max(timestampdiff(MICROSECOND, trx_started, sysdate(6))) / 1e6 FROM information_schema.innodb_trx"
_POSTGRES = (
    "SELECT max(extract(epoch FROM clock_timestamp() - xact_start)) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL"
)


class LongTransactions:
    """A `with` block: `longest_seconds` of those that wrote within it, seen twenty times a second.

    SQLite has one writer at a time: the longest wait of a small write of our own, which is as long as the others'.
    """

    def __enter__(self):
        self.longest_seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *raised):
        self._over.set()
        self._thread.join()

    def _look(self):
        while not self._over.wait(LOOK_SECONDS):
            self.longest_seconds = max(self.longest_seconds, self._now())
        connection.close()

    @staticmethod
    def _now():
        if VENDOR == "sqlite":
            begun = time.monotonic()
            run("BEGIN IMMEDIATE")
            run("ROLLBACK")
            return time.monotonic() - begun
        ((seconds,),) = run(_POSTGRES if VENDOR == "postgres" else _INNODB)
        return float(seconds or 0)
