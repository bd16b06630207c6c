"""The longest transaction of a server while something runs, by the server's own account."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from django.db import connection

from tests.proofs.schedules.rows import run
from tests.settings import VENDOR

#: between two looks; a transaction may have been longer than it was seen by twice as much. InnoDB makes its list anew
#: only if nobody has read it for 0.1 s: who looks more often sees the same transactions again.
LOOK_SECONDS = 0.15
_IDS = {
    "mysql": "SELECT trx_id FROM information_schema.innodb_trx WHERE trx_rows_modified > 0",
    "mariadb": "SELECT trx_id FROM information_schema.innodb_trx WHERE trx_rows_modified > 0",
    "postgres": "SELECT backend_xid::text FROM pg_stat_activity WHERE backend_xid IS NOT NULL",
}


class LongTransactions:
    """A `with` block: `longest_seconds` of those that wrote within it, seen six times a second (SQLite: more often)."""

    def __enter__(self):
        self.longest_seconds = 0.0
        #: when each of the open ones was first seen
        self._seen = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look if VENDOR != "sqlite" else self._look_at_file, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *raised):
        self._over.set()
        self._thread.join()

    def _look(self):
        while not self._over.wait(LOOK_SECONDS):
            self.longest_seconds = max(self.longest_seconds, self._now())
        connection.close()

    def _look_at_file(self):
        file = str(connection.settings_dict["NAME"])
        command = [sys.executable, "-m", "tests.proofs.schedules.sqlite_writer", file]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as observer:
            self._over.wait()
            self.longest_seconds = float(observer.communicate()[0])

    def _now(self):
        now = time.monotonic()
        # Not by the server's instants, which may be in the zone of the server or of the session.
        self._seen = {number: self._seen.get(number, now) for (number,) in run(_IDS[VENDOR])}
        return max((now - since for since in self._seen.values()), default=0.0)
