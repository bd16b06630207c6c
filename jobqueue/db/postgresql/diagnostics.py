"""Held locks, lock waits and the number of deadlocks on PostgreSQL, from pg_locks, pg_stat_activity and the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db import DatabaseError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.diagnostics import (
    Deadlock,
    DeadRows,
    Diagnostics,
    HeldLock,
    HeldLocks,
    LockKind,
    LockWait,
    OldTransaction,
    Party,
    RowHolder,
    SlowStatement,
    lock_wait,
    statement_of,
    without_values,
)
from jobqueue.db.diagnostics import marked as _
from jobqueue.db.statements import marks, one_value
from jobqueue.exceptions import NotSupported

# A wait for a row is a wait for its last writer's transaction; the row itself is what the waiter holds a tuple lock on.
# pg_blocking_pids() stops the lock manager for a moment, so it is called for waiting sessions only.
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
# A transaction that locks or updates a row writes its number, or that of its savepoint, into xmax.
_HOLDERS = """
SELECT %s::text, g.{column}::text, a.pid, extract(epoch FROM clock_timestamp() - a.xact_start), a.query,
  a.state <> 'active'
FROM {table} g
JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = g.xmax
JOIN pg_stat_activity a ON a.pid = l.pid
WHERE g.{column} IN ({values}) AND a.pid <> pg_backend_pid()
  AND a.xact_start <= clock_timestamp() - make_interval(secs => %s)
"""
_TABLE_HOLDERS = """
SELECT DISTINCT c.relname, a.pid, extract(epoch FROM clock_timestamp() - a.xact_start), a.query, a.state <> 'active'
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND a.pid <> pg_backend_pid() AND a.datname = current_database()
  AND l.mode = 'AccessExclusiveLock' AND c.relname IN ({tables}) AND pg_table_is_visible(c.oid)
LIMIT 20
"""
_TABLES = (
    "SELECT c.oid, c.oid::regclass::text, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE l.pid = pg_backend_pid() AND l.granted "
    "AND l.locktype = 'relation' AND l.mode NOT IN ('AccessShareLock', 'SIReadLock') "
    "AND c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
)
_KEY_COLUMNS = (
    "SELECT quote_ident(a.attname) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
    "AND a.attnum = ANY(i.indkey) WHERE i.indrelid = %s AND i.indisprimary ORDER BY array_position(i.indkey, a.attnum)"
)
# A row's xmin wrote it, its xmax was the last to lock or change it, maybe long ago. Ours are not older than the
# transaction; savepoints have numbers of their own, above its own.
_ROWS = (
    "SELECT {key}, t.xmin::text::bigint, age(t.xmin), t.xmax::text::bigint, age(t.xmax) FROM {table} t "
    "WHERE pg_current_xact_id_if_assigned() IS NOT NULL AND (age(t.xmin) <= 0 OR age(t.xmax) <= 0)"
)
_IS_OF_OTHERS = (
    "SELECT EXISTS (SELECT FROM pg_locks WHERE transactionid = (%s)::text::xid AND granted AND pid <> pg_backend_pid())"
)
# The difference in age leads from the 32 bits that rows keep to the whole number.
_IS_RUNNING = "SELECT pg_xact_status((pg_current_xact_id_if_assigned()::text::bigint - %s)::text::xid8) = 'in progress'"
_SHARED = (
    "SELECT {key}, r.modes[1] FROM pgrowlocks(%s) r JOIN {table} t ON t.ctid = r.locked_row, "
    "(SELECT pg_current_xact_id_if_assigned()::xid AS xid) top "
    "WHERE top.xid IS NOT NULL AND top.xid = ANY(r.xids)"
)
_OLD = """
SELECT pid, EXTRACT(epoch FROM clock_timestamp() - xact_start) AS age, state <> 'active',
  EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.relation = to_regclass(%s) AND l.granted
    AND l.mode NOT IN ('AccessShareLock', 'SIReadLock'))
FROM pg_stat_activity a
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND xact_start <= clock_timestamp() - make_interval(secs => %s)
ORDER BY xact_start LIMIT %s
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


class PostgreSQLDiagnostics(Diagnostics):
    """PostgreSQL 14 and later."""

    available = True
    # The server shows no owner for the number of a savepoint that was released.
    held_unseen = (
        "Not shown: deleted rows; without the extension pgrowlocks, rows shared with other lockers. "
        "Shown as well: rows that another open transaction locked in a savepoint that has been released."
    )

    def held(self, connection: BaseDatabaseWrapper) -> HeldLocks:
        """This session's table locks and row locks. Reads every table that the transaction has locked rows of."""
        found: set[HeldLock] = set()
        has_pgrowlocks = one_value(connection, "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pgrowlocks')")
        with connection.cursor() as cursor:
            cursor.execute(_TABLES)
            for oid, table, mode in cursor.fetchall():
                found.add(HeldLock(table, "", LockKind.TABLE, mode))
                found |= set(_rows(cursor, oid, table, has_pgrowlocks))
        return HeldLocks(frozenset(found), str(one_value(connection, "SHOW transaction_isolation")))

    def waits(self, connection: BaseDatabaseWrapper, limit: int = 20) -> list[LockWait]:
        """pg_blocking_pids() of every session that waits. Statements of other roles need pg_read_all_stats."""
        with connection.cursor() as cursor:
            cursor.execute(_WAITS, [limit])
            return [_wait(*row) for row in cursor.fetchall()]

    def row_holders(
        self, connection: BaseDatabaseWrapper, rows: Mapping[str, tuple[str, Sequence[int | str]]], seconds: float
    ) -> list[RowHolder]:
        """By xmax of the rows, so not of rows whose lock was taken in a savepoint that has been released."""
        quote, parts, params = connection.ops.quote_name, list[str](), list[Any]()
        for table, (column, values) in rows.items():
            parts.append(_HOLDERS.format(table=quote(table), column=quote(column), values=marks(values)))
            params += [table, *values, seconds]
        with connection.cursor() as cursor:
            cursor.execute(f"{' UNION '.join(parts)} ORDER BY 4 DESC LIMIT 20", params)
            found = cursor.fetchall()
        return [
            RowHolder(table, str(key), int(session), float(age), without_values(statement), bool(idles))
            for table, key, session, age, statement, idles in found
        ]

    def table_holders(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[RowHolder]:
        """From pg_locks, by the mode that keeps readers out."""
        with connection.cursor() as cursor:
            cursor.execute(_TABLE_HOLDERS.format(tables=marks(tables)), [*tables])
            found = cursor.fetchall()
        return [
            RowHolder(table, "", int(session), None if age is None else float(age), without_values(query), bool(idles))
            for table, session, age, query, idles in found
        ]

    def deadlocks(self, connection: BaseDatabaseWrapper) -> int:
        """pg_stat_database, since its statistics were reset."""
        return int(one_value(connection, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))

    def latest_deadlock(self, connection: BaseDatabaseWrapper) -> Deadlock | None:
        """Not kept by the server: see deadlock_in()."""
        return None

    def deadlock_in(self, error: BaseException) -> Deadlock | None:
        """The DETAIL of error 40P01 names the circle; the first process in it is the victim."""
        diagnosis = getattr(error.__cause__, "diag", None)
        if getattr(error.__cause__, "sqlstate", None) != "40P01" or diagnosis is None:
            return None
        lines = _LINE.findall(diagnosis.message_detail or "")
        return _report(lines, diagnosis.context or "", without_values(statement_of(error))) if lines else None

    def slow_statements(self, connection: BaseDatabaseWrapper, limit: int = 10) -> list[SlowStatement]:
        raise NotSupported(UNCOUNTED)

    def old_transactions(
        self, connection: BaseDatabaseWrapper, table: str, seconds: float, limit: int
    ) -> list[OldTransaction]:
        """From pg_stat_activity, which shows those of other accounts to members of pg_read_all_stats only."""
        with connection.cursor() as cursor:
            cursor.execute(_OLD, [table, seconds, limit])
            rows = cursor.fetchall()
        return [OldTransaction(int(pid), float(age), bool(idles), bool(locks)) for pid, age, idles, locks in rows]

    def dead_rows(self, connection: BaseDatabaseWrapper, table: str) -> DeadRows | None:
        """As autovacuum counts them."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE relid = %s::regclass", [table])
            row = cursor.fetchone()
        return DeadRows(*map(int, row)) if row else None


def _wait(waiting: int, blocking: int, begun: Any, seconds: Any, locked: str, mode: str, *rest: Any) -> LockWait:
    return lock_wait(f"{waiting} {blocking} {begun}", (waiting, blocking), locked, mode, seconds, *rest)


def _report(lines: list[tuple[str, str, str]], context: str, statement: str) -> Deadlock:
    parties = []
    for number, (process, lock, _blocker) in enumerate(lines):
        is_victim = number == 0
        # A blocker holds the lock that is waited for.
        holds = tuple(theirs for _process, theirs, blocker in lines if blocker == process)
        wanted = f"{lock} ({context.splitlines()[0]})" if is_victim and context else lock
        parties.append(Party(int(process), statement if is_victim else "", holds, (wanted,), is_victim))
    return Deadlock(f"postgresql {lines}", tuple(parties), ELSEWHERE)


def _rows(cursor: Any, oid: int, table: str, has_pgrowlocks: bool) -> Iterator[HeldLock]:
    cursor.execute(_KEY_COLUMNS, [oid])
    columns = [f"t.{name}" for (name,) in cursor.fetchall()] or ["t.ctid"]
    key = f"concat_ws(', ', {', '.join(columns)})"
    cursor.execute(_ROWS.format(key=key, table=table).replace("%", "%%"))
    rows = cursor.fetchall()
    mine = {xid for xid, age in {pair for row in rows for pair in (row[1:3], row[3:5])} if _is_mine(cursor, xid, age)}
    modes = {row[0]: "written" if row[1] in mine else "locked" for row in rows if row[1] in mine or row[3] in mine}
    if has_pgrowlocks:
        # It reports the kind of lock, and rows that several transactions share.
        cursor.execute(_SHARED.format(key=key, table=table), [table])
        modes |= {name: mode for name, mode in cursor.fetchall() if modes.get(name) != "written"}
    for name, mode in modes.items():
        yield HeldLock(table, "", LockKind.RECORD, mode, name, is_row=True)


def _is_mine(cursor: Any, xid: int, age: int) -> bool:
    if age > 0:
        return False
    try:
        # In this order: a transaction of others that ends in between gives back its lock, but does not run any more.
        with transaction.atomic(using=cursor.db.alias):
            cursor.execute(_IS_OF_OTHERS, [xid])
            if cursor.fetchone()[0]:
                return False
            cursor.execute(_IS_RUNNING, [age])
            return bool(cursor.fetchone()[0])
    except DatabaseError:
        # In the future: not a transaction but a group of lockers, counted by itself.
        return False
