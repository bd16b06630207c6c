"""Lock waits and the number of deadlocks on PostgreSQL, from pg_locks and pg_stat_activity."""

from __future__ import annotations

import re
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.lock_facts import Deadlock, LockMonitor, LockWait, Party, SlowStatement, statement_of, without_values
from jobqueue.db.lock_facts import marked as _
from jobqueue.exceptions import NotSupported

# A wait for a row is a wait for its last writer's transaction; the row itself is what the waiter holds a tuple lock on.
# pg_blocking_pids() stops the lock manager for a moment, so it is asked for those who wait and for nobody else.
_WAITS = """
SELECT a.pid, b.pid, l.waitstart, extract(epoch FROM clock_timestamp() - COALESCE(l.waitstart, a.query_start)),
  COALESCE((SELECT t.relation::regclass::text || ', row (' || t.page || ',' || t.tuple || ')' FROM pg_locks t
    WHERE t.pid = a.pid AND t.locktype = 'tuple' AND t.granted LIMIT 1),
    l.relation::regclass::text || CASE WHEN l.locktype = 'tuple'
      THEN ', row (' || l.page || ',' || l.tuple || ')' ELSE '' END, l.locktype),
  l.mode, a.query, b.query, b.state LIKE 'idle in transaction%%',
  extract(epoch FROM clock_timestamp() - b.xact_start)
FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid AND NOT l.granted
CROSS JOIN LATERAL unnest(pg_blocking_pids(a.pid)) AS x(pid) LEFT JOIN pg_stat_activity b ON b.pid = x.pid
WHERE a.wait_event_type = 'Lock' AND a.datname = current_database()
ORDER BY 4 DESC LIMIT %s
"""
_LINE = re.compile(r"Process (\d+) waits for (.+?); blocked by process (\d+)\.")
ELSEWHERE = _(
    "PostgreSQL reports a deadlock to the victim only; the statements of the others are in the server's log. "
    "Deadlocks that no helper of this package met are counted and have no report here."
)


UNCOUNTED = _(
    "PostgreSQL does not count the lock times of statements. Look at the lock waits that were seen, and at "
    "its log with log_lock_waits=on."
)


class PostgreSQLMonitor(LockMonitor):
    """PostgreSQL 14 and later."""

    available = True

    def waits(self, connection: BaseDatabaseWrapper, limit: int = 20) -> list[LockWait]:
        """pg_blocking_pids() of every session that waits. Statements of other roles need pg_read_all_stats."""
        with connection.cursor() as cursor:
            cursor.execute(_WAITS, [limit])
            return [_wait(*row) for row in cursor.fetchall()]

    def deadlocks(self, connection: BaseDatabaseWrapper) -> int:
        """pg_stat_database, since its statistics were reset."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            return int(cursor.fetchone()[0])

    def latest_deadlock(self, connection: BaseDatabaseWrapper) -> Deadlock | None:
        """Not kept by the server: see met()."""
        return None

    def met(self, error: BaseException) -> Deadlock | None:
        """The DETAIL of error 40P01 names the circle; the first process in it is the victim."""
        told = getattr(error.__cause__, "diag", None)
        if getattr(error.__cause__, "sqlstate", None) != "40P01" or told is None:
            return None
        lines = _LINE.findall(told.message_detail or "")
        return _story(lines, told.context or "", without_values(statement_of(error))) if lines else None

    def slow_statements(self, connection: BaseDatabaseWrapper, limit: int = 10) -> list[SlowStatement]:
        """Not counted by PostgreSQL."""
        raise NotSupported(UNCOUNTED)


def _wait(waiting: int, blocking: int, begun: Any, seconds: Any, locked: str, mode: str, *rest: Any) -> LockWait:
    waits_in, blocks_in, idles, age = rest
    return LockWait(
        identity=f"{waiting} {blocking} {begun}",
        waiting=waiting,
        blocking=int(blocking or 0),
        seconds=float(seconds or 0),
        locked=locked,
        mode=mode,
        waiting_statement=without_values(waits_in),
        blocking_statement=without_values(blocks_in),
        blocker_idles=bool(idles),
        blocking_seconds=None if age is None else float(age),
    )


def _story(lines: list[tuple[str, str, str]], context: str, statement: str) -> Deadlock:
    parties = []
    for number, (process, lock, _blocker) in enumerate(lines):
        is_victim = number == 0
        # Whoever blocks holds what is waited for.
        holds = tuple(theirs for _process, theirs, blocker in lines if blocker == process)
        wanted = f"{lock} ({context.splitlines()[0]})" if is_victim and context else lock
        parties.append(Party(int(process), statement if is_victim else "", holds, (wanted,), is_victim))
    return Deadlock(f"postgresql {lines}", tuple(parties), ELSEWHERE)
