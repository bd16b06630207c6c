"""PostgreSQL 14 and later."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator, Sequence
from typing import Any

from django.db import InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DatabaseError

from jobqueue.db.base import Fault
from jobqueue.db.postgresql_locks import PostgreSQLLocks

# Serialization failure, deadlock, lock not available, statement canceled; no room on disk or in memory, disk error.
_TRANSIENT = {"40001", "40P01", "55P03", "57014", "53100", "53200", "58030"}
# Connection exceptions are class 08; 57Pxx shut down or terminated, 53300 too many clients, 25006 read-only.
_GONE = {"57P01", "57P02", "57P03", "57P05", "53300", "25006", "25P03"}
# Terminated (what it was doing is rolled back), starting up or shutting down, too many clients.
_NEVER_TAKEN = ("57P01", "57P03", "53300")
# How the drivers' own words begin; libpq's are behind them.
_NEVER_SENT = (
    "connection failed: ",
    "connection to server at ",
    "connection timeout expired",
    "connection is bad",
    "failed to resolve host",
    "the connection is closed",
    "connection already closed",
    "sending query failed: ",
    "flushing failed: ",
)


class _AsIs(json.JSONEncoder):
    def encode(self, o: Any) -> str:
        return str(o)


class PostgreSQL(PostgreSQLLocks):
    """PostgreSQL through psycopg."""

    name = "PostgreSQL"
    supported = True
    claim_strategy = "skip-locked"
    claim_form = "one UPDATE .. RETURNING of rows locked with FOR UPDATE SKIP LOCKED"
    column_types = {"tiny": "smallint", "instant": "timestamp with time zone"}
    # Its locks do not ask for it. But statistics may say that nothing has a status, and then an index on that is taken,
    # with an entry for each row that has had it since the oldest open snapshot.
    unindexed_sql = "(%(expressions)s + 0)"
    for_share_sql = "FOR SHARE"
    returning_id_sql = "RETURNING id"
    takes_at_once = True
    notifies = True
    copies_updated_rows = True
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

    def json_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Any:
        """Typed, so that it is JSON inside CASE as well."""
        return connection.ops.adapt_json_value(text, _AsIs)

    def heads_after_sql(self, table: str, column: str, index: str) -> str:
        """By the index's own order: MIN(id) of one value could walk along the primary key, over all that is history."""
        first = f"SELECT {column}, id FROM {table} WHERE {column} >"
        order = f"ORDER BY {column}, id LIMIT 1"
        return (
            f"WITH RECURSIVE found ({column}, id) AS (({first} %s {order}) UNION ALL "
            f"SELECT ahead.{column}, ahead.id FROM found CROSS JOIN LATERAL ({first} found.{column} {order}) AS ahead) "
            f"SELECT {column}, id FROM found LIMIT %s"
        )

    def next_in_lanes_sql(self, places: str, jobs: str, after: Sequence[tuple[int, int]]) -> tuple[str, list[Any]]:
        """From two arrays: the planner would plan each SELECT of a UNION ALL by itself, which took longer than the run.

        LIMIT within LATERAL keeps the plan a seek for each lane, whatever the statistics say.
        """
        sql = (
            "SELECT p.id, p.lane, p.job_id, p.halted, j.status, j.gate, j.queue "
            "FROM unnest(%s::bigint[], %s::bigint[]) AS w (lane, after) "
            f"CROSS JOIN LATERAL (SELECT f.id, f.lane, f.job_id, f.halted FROM {places} f "
            "WHERE f.lane = w.lane AND f.id > w.after ORDER BY f.lane, f.id LIMIT 1) AS p "
            f"LEFT JOIN LATERAL (SELECT status, gate, queue FROM {jobs} WHERE id = p.job_id LIMIT 1) AS j ON true"
        )
        return sql, [[lane for lane, _ in after], [place for _, place in after]]

    def binary_collation(self, connection: BaseDatabaseWrapper) -> str | None:
        """Bytes as they are."""
        return "C"

    def problems(self, connection: BaseDatabaseWrapper) -> Iterator[tuple[str, str, str]]:
        """Isolation; Django itself refuses servers that are too old."""
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            (level,) = cursor.fetchone()
        if level != "read committed":
            yield (
                "W022",
                f"Sessions run at {level}: claims that meet a changed row fail and are redone, again and again.",
                'Leave OPTIONS["isolation_level"] of the queue\'s database at read committed.',
            )

    def isolation(self, connection: BaseDatabaseWrapper) -> str:
        """As the server says."""
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            return str(cursor.fetchone()[0])

    def notify(self, connection: BaseDatabaseWrapper, channel: str, text: str) -> None:
        """pg_notify."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [channel, text])

    def is_pooled(self, connection: BaseDatabaseWrapper) -> bool:
        """A pooler such as PgBouncer makes up the number that the driver is told at the login."""
        connection.ensure_connection()
        session: Any = connection.connection
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return bool(cursor.fetchone()[0] != session.info.backend_pid)

    def listen(self, connection: BaseDatabaseWrapper, channel: str) -> None:
        """LISTEN."""
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {connection.ops.quote_name(channel)}")

    def heard(self, connection: BaseDatabaseWrapper, seconds: float) -> list[str]:
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

    def fault(self, error: BaseException) -> Fault | None:
        """By SQLSTATE; an operational error without one is a connection that is no more."""
        if not isinstance(error, DatabaseError | InterfaceError):
            return None
        state = self.error_code(error)
        if state in _TRANSIENT:
            return Fault.TRANSIENT
        if state in _GONE or state.startswith("08"):
            return Fault.GONE
        if isinstance(error, OperationalError | InterfaceError) and len(state) != 5:
            return Fault.GONE
        return None

    def never_sent(self, error: BaseException) -> bool:
        """There was no session, the driver could not send all of the statement, or the server said that it ended first.

        psycopg says "consuming input failed" for an answer that did not arrive: then nobody knows.
        """
        return self.error_code(error) in _NEVER_TAKEN or str(error).startswith(_NEVER_SENT)

    def error_code(self, error: BaseException) -> str:
        """SQLSTATE of the driver's exception."""
        return getattr(error.__cause__, "sqlstate", None) or type(error).__name__
