"""The locks of a session on PostgreSQL: tables from pg_locks, rows from the rows themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import DatabaseError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.lock_facts import HeldLock, HeldLocks, LockKind

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
# The difference in age leads from the 32 bits that rows keep to the whole number.
_STATUS = (
    "SELECT pg_xact_status((pg_current_xact_id_if_assigned()::text::bigint - %s)::text::xid8) = 'in progress' "
    "AND NOT EXISTS (SELECT FROM pg_locks "
    "WHERE transactionid = (%s)::text::xid AND granted AND pid <> pg_backend_pid())"
)
_SHARED = (
    "SELECT {key}, r.modes[1] FROM pgrowlocks(%s) r JOIN {table} t ON t.ctid = r.locked_row, "
    "(SELECT pg_current_xact_id_if_assigned()::xid AS xid) top "
    "WHERE top.xid IS NOT NULL AND top.xid = ANY(r.xids)"
)


def postgresql_held(connection: BaseDatabaseWrapper) -> HeldLocks:
    """This session's table locks and row locks. Reads every table that the transaction has locked rows of."""
    found: set[HeldLock] = set()
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pgrowlocks')")
        (has_pgrowlocks,) = cursor.fetchone()
        cursor.execute(_TABLES)
        for oid, table, mode in cursor.fetchall():
            found.add(HeldLock(table, "", LockKind.TABLE, mode))
            found |= set(_rows(cursor, oid, table, has_pgrowlocks))
        cursor.execute("SHOW transaction_isolation")
        (isolation,) = cursor.fetchone()
    return HeldLocks(frozenset(found), str(isolation))


def _rows(cursor: Any, oid: int, table: str, has_pgrowlocks: bool) -> Iterator[HeldLock]:
    cursor.execute(_KEY_COLUMNS, [oid])
    columns = [f"t.{name}" for (name,) in cursor.fetchall()] or ["t.ctid"]
    key = f"concat_ws(', ', {', '.join(columns)})"
    cursor.execute(_ROWS.format(key=key, table=table).replace("%", "%%"))
    rows = cursor.fetchall()
    mine = {xid for xid, age in {pair for row in rows for pair in (row[1:3], row[3:5])} if _is_mine(cursor, xid, age)}
    modes = {row[0]: "written" if row[1] in mine else "locked" for row in rows if row[1] in mine or row[3] in mine}
    if has_pgrowlocks:
        # It knows the kind of lock, and rows that several transactions share.
        cursor.execute(_SHARED.format(key=key, table=table), [table])
        modes |= {name: mode for name, mode in cursor.fetchall() if modes.get(name) != "written"}
    for name, mode in modes.items():
        yield HeldLock(table, "", LockKind.RECORD, mode, name, is_row=True)


def _is_mine(cursor: Any, xid: int, age: int) -> bool:
    if age > 0:
        return False
    try:
        with transaction.atomic(using=cursor.db.alias):
            cursor.execute(_STATUS, [age, xid])
            return bool(cursor.fetchone()[0])
    except DatabaseError:
        # In the future: not a transaction but a group of lockers, counted by itself.
        return False
