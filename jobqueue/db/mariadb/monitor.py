"""Lock waits and deadlocks on MariaDB, from information_schema."""

from __future__ import annotations

import re
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.lock_facts import MYSQL_QUOTES, LockWait, SlowStatement, without_values
from jobqueue.db.mysql.monitor import NO_PROCESS_RIGHT, MySQLMonitor, ask

# Instants of INNODB_TRX have the zone of the server's host and no fractions, so they are only compared to each other.
# Led by the waits, as on MySQL.
_WAITS = """
SELECT w.requested_lock_id, rt.trx_mysql_thread_id, bt.trx_mysql_thread_id, COALESCE(p.time_ms, 0) / 1000,
  r.lock_table, r.lock_index, r.lock_mode, r.lock_data, rt.trx_query, bt.trx_query,
  TIMESTAMPDIFF(SECOND, bt.trx_started, rt.trx_wait_started), DATABASE()
FROM information_schema.innodb_lock_waits w
STRAIGHT_JOIN information_schema.innodb_locks r ON r.lock_id = w.requested_lock_id
STRAIGHT_JOIN information_schema.innodb_trx rt ON rt.trx_id = w.requesting_trx_id
STRAIGHT_JOIN information_schema.innodb_trx bt ON bt.trx_id = w.blocking_trx_id
LEFT JOIN information_schema.processlist p ON p.id = rt.trx_mysql_thread_id
ORDER BY 4 DESC LIMIT %s
"""
_NAME = re.compile(r"`((?:[^`]|``)*)`\.`((?:[^`]|``)*)`")


class MariaDBMonitor(MySQLMonitor):
    """MariaDB 10.6 and later: its views want PROCESS, and performance_schema is off unless somebody turned it on."""

    def waits(self, connection: BaseDatabaseWrapper, limit: int = 20) -> list[LockWait]:
        """information_schema.INNODB_LOCK_WAITS, at most a tenth of a second old."""
        sql = f"SET STATEMENT max_statement_time=2 FOR {_WAITS}"
        return [_wait(*row) for row in ask(connection, sql, [limit], NO_PROCESS_RIGHT)]

    def slow_statements(self, connection: BaseDatabaseWrapper, limit: int = 10) -> list[SlowStatement]:
        """As on MySQL, where performance_schema is on; it has waits for tables only."""
        return super().slow_statements(connection, limit)


def _wait(identity: str, waiting: int, blocking: int, seconds: Any, *rest: Any) -> LockWait:
    full, index, mode, key, waits_in, blocks_in, before, database = rest
    found = _NAME.fullmatch(full)
    table = full if found is None else found[2] if found[1] == database else f"{found[1]}.{found[2]}"
    where = f"{table}, index {index}" if index else table
    return LockWait(
        identity=f"{identity} {waiting} {blocking}",
        waiting=int(waiting),
        blocking=int(blocking),
        seconds=float(seconds),
        locked=f"{where}, record {key}" if key else where,
        mode=mode,
        waiting_statement=without_values(waits_in, MYSQL_QUOTES),
        blocking_statement=without_values(blocks_in, MYSQL_QUOTES),
        blocker_idles=blocks_in is None,
        blocking_seconds=None if before is None else float(before) + float(seconds),
    )
