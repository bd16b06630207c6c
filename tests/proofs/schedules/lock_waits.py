"""The longest wait for a row lock, by the server's own account."""

from __future__ import annotations

import time

from tests.proofs.schedules.rows import run
from tests.settings import VENDOR

INNODB = VENDOR in ("mysql", "mariadb")
#: between two looks; a wait of PostgreSQL may have been longer than it was seen by so much
LOOK_SECONDS = 0.02


class LockWaits:
    """The longest wait since this was made.

    InnoDB remembers the longest one since the start of the server: a wait that is shorter than one before is not seen.
    PostgreSQL tells when each wait began, to whoever looks while it lasts. SQLite knows none but the wait for its one
    writer: the longest statement of a producer.
    """

    def __init__(self):
        self._before = self._innodb() if INNODB else {}
        self._longest = 0.0

    def look(self):
        """Look once, and rest for LOOK_SECONDS."""
        if VENDOR == "postgres":
            age = "extract(epoch FROM clock_timestamp() - waitstart)"
            ((waits,),) = run(f"SELECT max({age}) FROM pg_locks WHERE NOT granted")
            self._longest = max(self._longest, float(waits or 0))
        time.sleep(LOOK_SECONDS)

    def longest_ms(self, statement_seconds):
        """The longest wait in ms, where `statement_seconds` was the longest statement."""
        if INNODB:
            now = self._innodb()
            waited = now["time"] - self._before["time"]
            # All waits together are another bound, where an earlier wait was longer than each of these.
            return now["time_max"] if now["time_max"] > self._before["time_max"] else min(waited, now["time_max"])
        return 1000 * (statement_seconds if VENDOR == "sqlite" else self._longest)

    @staticmethod
    def _innodb():
        rows = run("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_%%'")
        return {name.lower().removeprefix("innodb_row_lock_"): int(value) for name, value in rows}
