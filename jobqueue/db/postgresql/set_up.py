"""The set-up of a PostgreSQL server: settings, sessions, plans, dead rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.parameters import Parameter
from jobqueue.db.postgresql.session import is_pooled, limited, sqlstate
from jobqueue.db.set_up import DeadRows, OldTransaction, Plan, SessionUse, SetUp, TableIndex
from jobqueue.db.sockets import one_value

SETTINGS = ("fsync", "synchronous_commit", "autovacuum", "idle_in_transaction_session_timeout")
#: below this size of a table the planner often reads and sorts all rows, because that is cheaper
SMALL_BYTES = 1024 * 1024
#: rows that a claim may read and sort unharmed, also in a large file from which most rows were deleted
FEW_ROWS, RUN_SECONDS = 1000, 1.0
# -1 means no limit of the account or the database. The sum has one row per database, not per session.
_USE = """
SELECT LEAST(
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
    (SELECT NULLIF(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
    (SELECT NULLIF(datconnlimit, -1) FROM pg_database WHERE datname = current_database())
  ), (SELECT SUM(numbackends) FROM pg_stat_database)
"""
#: SQLSTATE of a statement that took longer than its limit
_CANCELED = "57014"
_INDEXES = """
SELECT t.relname, i.relname, ARRAY(
    SELECT a.attname::text FROM unnest(x.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.attnum ORDER BY k.place
  )
FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
WHERE x.indisvalid AND pg_table_is_visible(t.oid) AND t.relname = ANY(%s)
"""
_OLD = """
SELECT pid, EXTRACT(epoch FROM clock_timestamp() - xact_start) AS age, state <> 'active',
  EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.relation = to_regclass(%s) AND l.granted
    AND l.mode NOT IN ('AccessShareLock', 'SIReadLock'))
FROM pg_stat_activity a
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND xact_start <= clock_timestamp() - make_interval(secs => %s)
ORDER BY xact_start LIMIT %s
"""


class PostgreSQLSetUp(SetUp):
    """PostgreSQL 14 and later."""

    def plan(self, connection: BaseDatabaseWrapper, table: str, sql: str, params: Sequence[Parameter]) -> Plan | None:
        """Read the text of EXPLAIN."""
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {sql}", params)
            text = "\n".join(str(line) for (line,) in cursor.fetchall())
        scans, sorts = "Seq Scan on" in text, "Sort Key" in text
        return Plan(text, scans, sorts, (scans or sorts) and _reads_little(connection, table, sql, params))

    def indexes(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[TableIndex]:
        """From pg_index. One whose CREATE INDEX CONCURRENTLY has failed is invalid."""
        with connection.cursor() as cursor:
            cursor.execute(_INDEXES, [list(tables)])
            return [TableIndex(str(table), str(name), tuple(columns)) for table, name, columns in cursor.fetchall()]

    def grants(self, connection: BaseDatabaseWrapper, account: str, rights: str, tables: Sequence[str]) -> list[str]:
        """A single statement."""
        names = ", ".join(map(connection.ops.quote_name, tables))
        return [f"GRANT {rights} ON {names} TO {connection.ops.quote_name(account)};"]

    def session_use(self, connection: BaseDatabaseWrapper) -> SessionUse | None:
        """The smallest limit of the server, the account and the database."""
        if is_pooled(connection):
            return None
        with connection.cursor() as cursor:
            cursor.execute(_USE)
            limit, used = cursor.fetchone()
        return SessionUse(int(limit), int(used))

    def default_isolation(self, connection: BaseDatabaseWrapper) -> str | None:
        """Of the account and the database, whatever this session has set."""
        return str(
            one_value(connection, "SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'")
        )

    def values(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """Read pg_settings, in its units."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [list(SETTINGS)])
            return {str(name): str(value) for name, value in cursor.fetchall()}

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


def _reads_little(connection: BaseDatabaseWrapper, table: str, sql: str, params: Sequence[Parameter]) -> bool:
    """Whether the table is small, or a step of the statement reads FEW_ROWS at most. The statement is run for it."""
    if int(one_value(connection, "SELECT pg_relation_size(%s::regclass)", [table])) < SMALL_BYTES:
        return True
    try:
        with limited(connection, RUN_SECONDS), connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {sql}", params)
            text = "\n".join(str(line) for (line,) in cursor.fetchall())
    except Error as error:
        if sqlstate(error) != _CANCELED:
            raise
        return False
    return max(map(float, re.findall(r"(?:actual rows=|Removed by Filter: )([\d.]+)", text))) <= FEW_ROWS
