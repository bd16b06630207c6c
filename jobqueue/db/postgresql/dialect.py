"""PostgreSQL 14 and later."""

from __future__ import annotations

import json
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DatabaseError

from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.dialect import Dialect, ErrorKind, Problem, Q
from jobqueue.db.indexed_table import bind_part
from jobqueue.db.parameters import Parameter
from jobqueue.db.postgresql.diagnostics import PostgreSQLDiagnostics
from jobqueue.db.postgresql.locks import PostgreSQLLocks
from jobqueue.db.postgresql.session import (
    driver_problem,
    has_no_connection,
    is_pooled,
    limited,
    limited_waits,
    sqlstate,
)
from jobqueue.db.postgresql.set_up import PostgreSQLSetUp
from jobqueue.db.seeks import GroupSeek
from jobqueue.db.sockets import one_value

#: for the transaction that a statement with these in front of it is
_IN_INDEX_ORDER = "SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off; "
# Serialization failure, deadlock, lock not available, statement canceled; no room on disk or in memory, disk error.
_TRANSIENT = {
    "40001": ErrorKind.SERIALIZATION,
    "40P01": ErrorKind.DEADLOCK,
    "55P03": ErrorKind.LOCK_TIMEOUT,
    "57014": ErrorKind.CANCELED,
    **dict.fromkeys(("53100", "53200", "58030"), ErrorKind.NO_ROOM),
}
# Connection exceptions are class 08; 57Pxx shut down or terminated, 25006 read-only.
_GONE = {"57P01", "57P02", "57P03", "57P05", "25006", "25P03"}
# Terminated (what it was doing is rolled back), starting up or shutting down, read-only: it takes no writes.
_NEVER_TAKEN = ("57P01", "57P03", "25006")
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


class PostgreSQL(Dialect):
    """PostgreSQL through psycopg."""

    name = "PostgreSQL"
    supported = True
    opening_option = "connect_timeout"
    claim_strategy = "skip-locked"
    claim_form = "one UPDATE .. RETURNING of rows locked with FOR UPDATE SKIP LOCKED"
    locks = PostgreSQLLocks()
    diagnostics = PostgreSQLDiagnostics()
    set_up = PostgreSQLSetUp()
    column_types = {"tiny": "smallint", "instant": "timestamp with time zone"}
    # Planned as a value that is not known yet.
    unestimated_sql = "(SELECT %s)"
    joins_laterally = True
    compares_rows = True
    for_share_sql = "FOR SHARE"
    returning_id_sql = "RETURNING id"
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

    def json_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Parameter:
        """Typed, so that it is JSON inside CASE as well."""
        return connection.ops.adapt_json_value(text, _AsIs)

    def within_ids(self, queryset: Q, above: int, up_to: int) -> Q:
        """By a subquery: where the statistics know no job of a queue or state, its index looks cheaper than it is."""
        # OFFSET 0 keeps all other conditions from choosing a plan.
        return bind_part(
            queryset, f"SELECT * FROM {{table}} WHERE {{key}} > {above:d} AND {{key}} <= {up_to:d} OFFSET 0"
        )

    @contextmanager
    def in_index_order(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """By the text before the statement, in the same round trip: one simple query is one transaction.

        After a burst into an emptied table the statistics say that a few jobs wait, and the planner would read and sort
        all of them for each claim, until the next ANALYZE. Not in a transaction, in which the settings would stay, and
        not with binding by the server, which takes one statement at a time.
        """
        driver, bound = connection.Database.__name__, connection.settings_dict["OPTIONS"].get("server_side_binding")  # type: ignore[attr-defined]
        if bound or driver != "psycopg" or in_callers_transaction(connection):
            yield
            return

        def unsorted(execute: Callable[..., Parameter], sql: str, params: Any, many: bool, context: Any) -> Parameter:
            result = execute(_IN_INDEX_ORDER + sql, params, many, context)
            # The rows are those of the last statement.
            while context["cursor"].nextset():
                pass
            return result

        # Entered last, so it is the innermost: others see the statement alone.
        with connection.execute_wrapper(unsorted):
            yield

    def of_ids(self, queryset: Q, ids: Sequence[int]) -> Q:
        """By a seek each: of a small table, or what it takes for one, PostgreSQL would read all rows for a long IN."""
        text = ",".join(str(int(one)) for one in ids)
        seek = "SELECT * FROM {table} WHERE {key} = w.wanted LIMIT 1"
        part = f"SELECT j.* FROM unnest('{{{{{text}}}}}'::bigint[]) AS w (wanted) CROSS JOIN LATERAL ({seek}) AS j"
        return bind_part(queryset, f"{part} OFFSET 0")

    def first_ids_after_sql(self, table: str, column: str, index: str) -> str:
        """By the index's own order: MIN(id) of one value could walk along the primary key, over all that is history."""
        first = f"SELECT {column}, id FROM {table} WHERE {column} >"
        order = f"ORDER BY {column}, id LIMIT 1"
        return (
            f"WITH RECURSIVE found ({column}, id) AS (({first} %s {order}) UNION ALL "
            f"SELECT ahead.{column}, ahead.id FROM found CROSS JOIN LATERAL ({first} found.{column} {order}) AS ahead) "
            f"SELECT {column}, id FROM found LIMIT %s"
        )

    def next_in_groups_sql(self, seek: GroupSeek, after: Sequence[tuple[int, int]]) -> tuple[str, list[Parameter]]:
        """From two arrays: the planner would plan each SELECT of a UNION ALL by itself, which took longer than the run.

        LIMIT within LATERAL keeps the plan a seek for each group, whatever the statistics say.
        """
        group = seek.group
        columns = [*(f"p.{name}" for name in seek.columns), *(f"j.{name}" for name in seek.other_columns)]
        sql = (
            f"SELECT {', '.join(columns)} "
            f"FROM unnest(%s::bigint[], %s::bigint[]) AS w ({group}, after) "
            f"CROSS JOIN LATERAL (SELECT {', '.join(f'f.{name}' for name in seek.columns)} FROM {seek.table} f "
            f"WHERE f.{group} = w.{group} AND f.id > w.after ORDER BY f.{group}, f.id LIMIT 1) AS p "
            f"LEFT JOIN LATERAL (SELECT {', '.join(seek.other_columns)} FROM {seek.other} "
            f"WHERE id = p.{seek.link} LIMIT 1) AS j ON true"
        )
        return sql, [[number for number, _ in after], [last for _, last in after]]

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
    limit_reads = staticmethod(limited)
    limit_waits = staticmethod(limited_waits)

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

    def error_kind(self, error: BaseException) -> ErrorKind | None:
        """By SQLSTATE; an operational error without one is a lost connection."""
        if not isinstance(error, DatabaseError | InterfaceError):
            return None
        if has_no_connection(error):
            return ErrorKind.NO_CONNECTION
        state = self.error_code(error)
        if state in _GONE or state.startswith("08"):
            return ErrorKind.LOST_CONNECTION
        if isinstance(error, OperationalError | InterfaceError) and len(state) != 5:
            return ErrorKind.LOST_CONNECTION
        return _TRANSIENT.get(state)

    def never_sent(self, error: BaseException) -> bool:
        """There was no session, the driver could not send all of the statement, or the server ended it first.

        psycopg says "consuming input failed" for an answer that did not arrive: then it is unknown.
        """
        taken = self.error_code(error) not in _NEVER_TAKEN and not has_no_connection(error)
        return not taken or str(error).startswith(_NEVER_SENT)

    def error_code(self, error: BaseException) -> str:
        return sqlstate(error) or type(error).__name__


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
