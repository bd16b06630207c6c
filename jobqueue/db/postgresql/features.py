"""PostgreSQL 14 and later, through psycopg."""

from __future__ import annotations

import json
import re
import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import Error, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.dialect import LOST_WRITES, Plan, Problem, SessionUse, SettingRule, TableIndex
from jobqueue.db.postgresql.diagnostics import PostgreSQLDiagnostics
from jobqueue.db.postgresql.errors import CANCELED, PostgreSQLErrors, sqlstate
from jobqueue.db.postgresql.locks import PostgreSQLLocks, is_pooled
from jobqueue.db.postgresql.statements import PostgreSQLStatements
from jobqueue.db.statements import Parameter, one_value, restored

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
_INDEXES = """
SELECT t.relname, i.relname, ARRAY(
    SELECT a.attname::text FROM unnest(x.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.attnum ORDER BY k.place
  )
FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
WHERE x.indisvalid AND pg_table_is_visible(t.oid) AND t.relname = ANY(%s)
"""
_SET = "SELECT set_config('statement_timeout', %s, true)"
_RESTORE_WAITS = "SELECT set_config('lock_timeout', %s, false)"
_SET_WAITS = (
    "SELECT set_config('lock_timeout', (CASE WHEN setting::bigint BETWEEN 1 AND %s THEN setting::bigint "
    "ELSE %s END)::text || 'ms', false) FROM pg_settings WHERE name = 'lock_timeout'"
)


class _AsIs(json.JSONEncoder):
    def encode(self, o: Any) -> str:
        return str(o)


_PAGE = "docs/howto/postgresql-settings.md"
_RULES = (
    SettingRule(
        "fsync", lambda value: value == "on", "durability", "all data can be lost in a power cut.",
        "Set fsync = on in postgresql.conf, and reload it.",
    ),
    SettingRule(
        "synchronous_commit", lambda value: value != "off", "durability", LOST_WRITES,
        "Set synchronous_commit = on for the server, the account or the database that has it off.",
    ),
    SettingRule(
        "autovacuum", lambda value: value == "on", "autovacuum_off",
        "nothing removes dead rows of jobs, so claims become slower by the hour.",
        f"Set autovacuum = on in postgresql.conf, and reload it. See {_PAGE}.",
    ),
    SettingRule(
        "idle_in_transaction_session_timeout", lambda value: value != "0", "idle_transactions",
        "the session of a program that hangs inside a transaction keeps its row locks for ever.",
        f"Set it to a few minutes for accounts of programs. See {_PAGE}.",
    ),
)  # fmt: skip


class PostgreSQL(PostgreSQLStatements, PostgreSQLErrors):
    """PostgreSQL through psycopg."""

    name = "PostgreSQL"
    supported = True
    page = _PAGE
    rules = _RULES
    opening_option = "connect_timeout"
    timeout_options = ("tcp_user_timeout", "keepalives_idle")
    oldest = (14,)
    claim_strategy = "skip-locked"
    claim_form = "one UPDATE .. RETURNING of rows locked with FOR UPDATE SKIP LOCKED"
    locks = PostgreSQLLocks()
    diagnostics = PostgreSQLDiagnostics()
    column_types = {"tiny": "smallint", "instant": "timestamp with time zone"}
    has_update_returning = True
    notifies = True
    copies_updated_rows = True
    indexes_end_with_key = False
    stores_utc_naive = False
    # STATEMENT_TIMESTAMP is stable, so an index can be used; CLOCK_TIMESTAMP would forbid that.
    now_sql = "STATEMENT_TIMESTAMP()"
    now_plus_sql = "(STATEMENT_TIMESTAMP() + make_interval(secs => (%(expressions)s)::double precision))"

    # Microseconds since 1970, exact until the year 2255: the driver reads a number in C, and an instant by functions in
    # Python, which took a fifth of a worker's time. Bounded: Python has no infinity and no year 0.
    selected_instant_sql = (
        "(CASE WHEN %(expressions)s IS NOT NULL THEN date_part('epoch', LEAST(GREATEST(%(expressions)s, "
        "'0001-01-02 00:00+00'), '9999-12-30 00:00+00')) * 1000000 END)::bigint"
    )

    # Exact in all years. A row that cannot be read would stop reaping, renewing and canceling for all others.
    bounded_instant_sql = (
        "(CASE WHEN %(instant)s IS NOT NULL THEN EXTRACT(epoch FROM LEAST(GREATEST(%(instant)s, "
        "'0001-01-01 00:00+00'), '9999-12-31 23:59:59.999999+00')) * 1000000 END)::bigint"
    )

    def later_sql(self, sql: str, seconds: float) -> str:
        return sql.replace(self.now_sql, f"({self.now_sql} + make_interval(secs => {seconds:.6f}))")

    def json_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Parameter:
        """Typed, so that it is JSON inside CASE as well."""
        return connection.ops.adapt_json_value(text, _AsIs)

    def binary_collation(self, connection: BaseDatabaseWrapper) -> str | None:
        return "C"

    def problems(self, connection: BaseDatabaseWrapper, table: str) -> Iterator[Problem]:
        """Driver and isolation; Django itself refuses servers that are too old."""
        wrapper: Any = connection
        if (problem := driver_problem(wrapper.Database)) is not None:
            yield problem
        level = self.isolation(connection)
        if level != "read committed":
            yield Problem(
                "W022",
                f"Sessions run at {level}: a claim of a row that was changed fails and is retried again and again.",
                'Leave OPTIONS["isolation_level"] of the queue\'s database at read committed.',
            )

    def isolation(self, connection: BaseDatabaseWrapper) -> str:
        return str(one_value(connection, "SHOW transaction_isolation"))

    def write_refusal(self, connection: BaseDatabaseWrapper) -> str:
        """A standby refuses all writes; the default of a session, those of transactions that do not say otherwise."""
        sql = "SELECT CASE WHEN pg_is_in_recovery() THEN 'recovery' ELSE current_setting(%s) END"
        found = str(one_value(connection, sql, ["default_transaction_read_only"]))
        return {"off": "", "on": "default_transaction_read_only"}.get(found, found)

    def in_transaction(self, connection: BaseDatabaseWrapper, *, begun: bool = False) -> bool:
        """From the driver: every status but idle; so also a failed transaction, and an answer that was not read."""
        session: Any = connection.connection
        return bool(session.info.transaction_status != 0)

    def reset_session(self, connection: BaseDatabaseWrapper) -> bool:
        """One round trip. What is set in the driver and not in the server stays, so such a session is given up."""
        session: Any = connection.connection
        wrapper: Any = connection
        level = wrapper.isolation_level if "isolation_level" in connection.settings_dict["OPTIONS"] else None
        # psycopg and psycopg2 have a name each.
        read_only = getattr(session, "read_only", None) or getattr(session, "readonly", None)
        if read_only or session.deferrable or session.isolation_level != level:
            return False
        if self.in_transaction(connection):
            return False
        with session.cursor() as cursor:
            cursor.execute("DISCARD ALL")
        return True

    def notify(self, connection: BaseDatabaseWrapper, channel: str, text: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [channel, text])

    def limit_idle_transactions(self, connection: BaseDatabaseWrapper, seconds: float) -> None:
        """idle_in_transaction_session_timeout, of the session."""
        if connection.settings_dict.get("OPTIONS", {}).get("pool") or is_pooled(connection):
            return
        _limit_idle(connection, seconds, of_transaction=False)

    @contextmanager
    def limited_transaction(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """idle_in_transaction_session_timeout, of the transaction: it goes with it, also behind a pooler."""
        with self.transaction(connection):
            _limit_idle(connection, seconds, of_transaction=True)
            yield

    is_pooled = staticmethod(is_pooled)

    @contextmanager
    def limit_reads(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """In a transaction, or savepoint, of its own. A stricter limit of the session stays.

        SET LOCAL, so that no pooler gives the limit to another client; an error leaves the caller's transaction usable.
        """
        with transaction.atomic(using=connection.alias):
            before = int(one_value(connection, "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'"))
            limit = max(1, round(1000 * seconds))
            one_value(connection, _SET, [f"{min(before, limit) if before else limit}ms"])
            yield
            one_value(connection, _SET, [f"{before}ms"])

    @contextmanager
    def limit_waits(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """By lock_timeout of the session.

        No transaction: the block may have several of its own. Behind a pooler there is no limit, because other clients
        could get the session.
        """
        if connection.settings_dict.get("OPTIONS", {}).get("pool") or is_pooled(connection):
            yield
            return
        before = str(one_value(connection, "SELECT current_setting('lock_timeout')"))
        one_value(connection, _SET_WAITS, [max(1, round(1000 * seconds))] * 2)
        with restored(connection, lambda: one_value(connection, _RESTORE_WAITS, [before])):
            yield

    def listen(self, connection: BaseDatabaseWrapper, channel: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {connection.ops.quote_name(channel)}")

    def notifications(self, connection: BaseDatabaseWrapper, seconds: float) -> list[str]:
        """Sleeps in poll() until the server sends something: psycopg's own wait looks ten times a second."""
        session: Any = connection.connection
        with connection.wrap_database_errors:
            texts = [notice.payload for notice in session.notifies(timeout=0)]
            if not texts and seconds > 0:
                waiting = select.poll()
                waiting.register(session.fileno(), select.POLLIN)
                waiting.poll(seconds * 1000)
                texts = [notice.payload for notice in session.notifies(timeout=0)]
        return texts

    def plan(self, connection: BaseDatabaseWrapper, table: str, sql: str, params: Sequence[Parameter]) -> Plan | None:
        """Read the text of EXPLAIN."""
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {sql}", params)
            text = "\n".join(str(line) for (line,) in cursor.fetchall())
        scans, sorts = "Seq Scan on" in text, "Sort Key" in text
        return Plan(text, scans, sorts, (scans or sorts) and self._reads_little(connection, table, sql, params))

    def _reads_little(self, connection: BaseDatabaseWrapper, table: str, sql: str, params: Sequence[Parameter]) -> bool:
        """Whether the table is small, or a step of the statement, which is run for it, reads FEW_ROWS at most."""
        if int(one_value(connection, "SELECT pg_relation_size(%s::regclass)", [table])) < SMALL_BYTES:
            return True
        try:
            with self.limit_reads(connection, RUN_SECONDS), connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {sql}", params)
                text = "\n".join(str(line) for (line,) in cursor.fetchall())
        except Error as error:
            if sqlstate(error) != CANCELED:
                raise
            return False
        return max(map(float, re.findall(r"(?:actual rows=|Removed by Filter: )([\d.]+)", text))) <= FEW_ROWS

    def indexes(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[TableIndex]:
        """From pg_index. One whose CREATE INDEX CONCURRENTLY has failed is invalid."""
        with connection.cursor() as cursor:
            cursor.execute(_INDEXES, [list(tables)])
            return [TableIndex(str(table), str(name), tuple(columns)) for table, name, columns in cursor.fetchall()]

    def grants(self, connection: BaseDatabaseWrapper, account: str, rights: str, tables: Sequence[str]) -> list[str]:
        names = ", ".join(map(connection.ops.quote_name, tables))
        return [f"GRANT {rights} ON {names} TO {connection.ops.quote_name(account)};"]

    def end_session_sql(self, session: int) -> str:
        return f"SELECT pg_terminate_backend({session})"

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

    def settings(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """Read pg_settings, in its units."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [[rule.name for rule in self.rules]]
            )
            return {str(name): str(value) for name, value in cursor.fetchall()}


def driver_problem(driver: Any) -> Problem | None:
    """What `check` reports of the driver's module: psycopg2 and old versions have other names for errors."""
    name, version = driver.__name__, str(driver.__version__)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if name == "psycopg" and numbers >= (3, 2):
        return None
    return Problem(
        "E015",
        f"The driver is {name} {version.split(' ')[0]}: what its errors mean is not known, so a deadlock or a refused "
        "lock would count as a lost connection.",
        'pip install "psycopg[binary]>=3.2". Django takes it as soon as it is installed.',
    )


def _limit_idle(connection: BaseDatabaseWrapper, seconds: float, *, of_transaction: bool) -> None:
    """Limit how long the session idles in a transaction, or in this one, unless it has a shorter limit."""
    name, limit = "idle_in_transaction_session_timeout", round(1000 * seconds)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT set_config(name, %s, {'true' if of_transaction else 'false'}) FROM pg_settings "
            "WHERE name = %s AND (setting::bigint = 0 OR setting::bigint > %s)",
            [f"{limit}ms", name, limit],
        )
        cursor.fetchall()
