"""MySQL 8.0.17 and later; most of it holds for MariaDB too."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.callers_transaction import in_callers_transaction, once_per_session
from jobqueue.db.diagnostics import Diagnostics
from jobqueue.db.dialect import LOST_WRITES, Plan, Problem, SessionUse, SettingRule, TableIndex
from jobqueue.db.locks import LockDialect
from jobqueue.db.mysql.diagnostics import MySQLDiagnostics
from jobqueue.db.mysql.errors import MySQLErrors, error_number
from jobqueue.db.mysql.locks import MySQLLocks
from jobqueue.db.mysql.statements import FOUR_BYTES, Hex, MySQLStatements, readable
from jobqueue.db.statements import Parameter, marks, one_value, restored

# What the driver writes with a backslash before it; JSON has few others than these.
_ESCAPED = "\\\"'\n\r\0\x1a"
_PADDED = "utf8mb4_bin"
# Statements that cannot leave a transaction open while autocommit is on.
_ROWS = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "SAVEPOINT", "RELEASE", "ROLLBACK"})
# Transaction characteristics cannot be changed now; not in this state of an XA transaction.
_REFUSED_INSIDE = {1568, 1399}
#: variables for which a server refuses writes, the strictest first
_REFUSALS = ("innodb_read_only", "super_read_only", "transaction_read_only", "tx_read_only", "read_only")
# The accounts that read_only does not bind.
_EXEMPT = """
SELECT COUNT(*) FROM information_schema.user_privileges
WHERE grantee = CONCAT_WS(
  '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1))
)
AND privilege_type IN ('SUPER', 'CONNECTION_ADMIN', 'READ_ONLY ADMIN', 'READ ONLY ADMIN')
"""
_IN_TRANSACTION, _AUTOCOMMIT = 1, 2  # bits of the status that MySQL sends with every answer
#: an attribute of connections: a session, and what it has between transactions
_USUAL = "_jobqueue_usual_limit"


_PAGE = "docs/howto/mysql-settings.md"
_RULES = (
    SettingRule(
        "innodb_flush_log_at_trx_commit", lambda value: value == "1", "durability", LOST_WRITES,
        f"Run SET GLOBAL innodb_flush_log_at_trx_commit = 1, and set it in the server's configuration. See {_PAGE}.",
    ),
    SettingRule(
        "sync_binlog", lambda value: value == "1", "durability", LOST_WRITES,
        f"Run SET GLOBAL sync_binlog = 1, and set it in the server's configuration. See {_PAGE}.",
    ),
    SettingRule(
        "innodb_lock_wait_timeout", lambda value: float(value) <= 50.0, "lock_wait_timeout",
        "an enqueue waits for so many seconds for the lock of another session before it is tried again.",
        f"Set it to 5 to 50 s. See {_PAGE}.",
    ),
)  # fmt: skip


class MySQL(MySQLStatements, MySQLErrors):
    """MySQL through any driver that raises Django's exceptions with the server's error number first."""

    name = "MySQL"
    supported = True
    page = _PAGE
    rules = _RULES
    opening_option = "connect_timeout"
    timeout_options = ("read_timeout", "write_timeout")
    idle_setting = "wait_timeout"
    oldest: tuple[int, ...] = (8, 0, 17)
    claim_strategy = "skip-locked"
    claim_form = "SELECT .. FOR UPDATE SKIP LOCKED, then a guarded UPDATE, at READ COMMITTED"
    locks: LockDialect = MySQLLocks()
    diagnostics: Diagnostics = MySQLDiagnostics()
    column_types = {
        "bigauto": "bigint UNSIGNED AUTO_INCREMENT",
        "bigauto_rel": "bigint UNSIGNED",
        "tiny": "tinyint",
        "text": "text",
        "token": "binary(16)",
        "key": "varbinary(64)",
        "instant": "datetime(6)",
    }
    unpadded_collation = "utf8mb4_0900_bin"
    selected_instant_sql = "CAST(%(expressions)s AS CHAR)"
    now_sql = "UTC_TIMESTAMP(6)"
    now_plus_sql = "TIMESTAMPADD(MICROSECOND, ROUND((%(expressions)s) * 1000000), UTC_TIMESTAMP(6))"

    def later_sql(self, sql: str, seconds: float) -> str:
        return sql.replace(self.now_sql, f"({self.now_sql} + INTERVAL {round(seconds * 1e6)} MICROSECOND)")

    def json_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Parameter:
        """Characters of four bytes as escapes: see Hex."""
        return text if text.isascii() else FOUR_BYTES.sub(lambda found: json.dumps(found[0])[1:-1], text)

    def text_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Parameter:
        """Hexadecimal digits where it has characters of four bytes: see Hex."""
        return readable(text)

    def binary_parameter(self, connection: BaseDatabaseWrapper, value: bytes) -> Parameter:
        return Hex(bytes(value).hex())

    def max_statement_bytes(self, connection: BaseDatabaseWrapper) -> int | None:
        """max_allowed_packet of this session: the server cuts the connection of a client that sends more."""
        return int(one_value(connection, "SELECT @@SESSION.max_allowed_packet"))

    def statement_bytes(self, text: str) -> int:
        """With the backslashes that the driver adds."""
        return len(text.encode()) + sum(text.count(character) for character in _ESCAPED)

    def in_transaction(self, connection: BaseDatabaseWrapper, *, begun: bool = False) -> bool:
        """PyMySQL keeps the server's status. Else the server is asked: one round trip.

        With autocommit off the next statement would begin one: True unless `begun`.
        """
        session: Any = connection.connection
        status = getattr(session, "server_status", None)
        if isinstance(status, int):
            return bool(status & _IN_TRANSACTION or not (begun or status & _AUTOCOMMIT))
        by_driver = getattr(session, "get_autocommit", None)
        if not begun and by_driver is not None and not by_driver():
            return True
        wrapper: Any = connection
        try:
            with session.cursor() as cursor:
                # No query reports it on both servers; this is refused inside a transaction, and changes nothing else.
                cursor.execute("SET TRANSACTION READ WRITE")
        except wrapper.Database.Error as error:
            if error_number(error) in _REFUSED_INSIDE:
                return True
            raise
        return False

    def is_left_open(self, connection: BaseDatabaseWrapper, words: Sequence[str]) -> bool:
        """The server is asked only after statements that may have begun a transaction."""
        if _ROWS.issuperset(words):
            return False
        if [word for word in words if word in ("LOCK", "UNLOCK", "BEGIN", "START")][-1:] == ["LOCK"]:
            return True
        return self.in_transaction(connection)

    def reset_session(self, connection: BaseDatabaseWrapper) -> bool:
        """COM_CHANGE_USER to the same user, which is a new login on the old socket; mysqlclient only."""
        session: Any = connection.connection
        change_user = getattr(session, "change_user", None)
        wanted = connection.get_connection_params()
        if change_user is None or not {"user", "database", "charset"} <= wanted.keys() or "read_default_file" in wanted:
            return False
        change_user(wanted["user"], wanted.get("password", wanted.get("passwd", "")), wanted["database"])
        # What the driver does for a new connection.
        session.set_character_set(wanted["charset"], wanted.get("collation", ""))
        if wanted.get("sql_mode"):
            session.set_sql_mode(wanted["sql_mode"])
        if wanted.get("init_command"):
            with session.cursor() as cursor:
                cursor.execute(wanted["init_command"])
        return True

    #: how long a session may idle within a transaction; on MySQL also outside of one
    idle_variable = "wait_timeout"

    @contextmanager
    def transaction(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """READ COMMITTED for this transaction only, whatever the session has or the caller has set for the next one."""
        inside = in_callers_transaction(connection)
        with transaction.atomic(using=connection.alias):
            # Each time: there is no notice when the session's level changes. Inside a transaction it is too late.
            if not inside:
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            yield

    @contextmanager
    def limited_transaction(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """By the variable of the session, in whole seconds. Costs one round trip in each session."""
        connection.ensure_connection()
        wrapper: Any = connection
        if "_set_autocommit" in vars(wrapper):
            with self.transaction(connection):
                yield
            return
        wrapper._set_autocommit = _limiting(wrapper, self.idle_variable, seconds)
        try:
            with self.transaction(connection):
                yield
        finally:
            del wrapper._set_autocommit

    def limit_idle_transactions(self, connection: BaseDatabaseWrapper, seconds: float) -> None:
        """In whole seconds; a shorter wait_timeout stays. Raises the server's error if it does not take this.

        Django begins and ends a transaction with a statement that sets autocommit. The limit is set by that same
        statement, so it costs no round trip. Between transactions a session may idle as before: if the server ended it
        there, the worker would have to open it again, perhaps when the server has no connection left.
        """
        wrapper: Any = connection
        wrapper._set_autocommit = _limiting(wrapper, "wait_timeout", seconds)
        wrapper._set_autocommit(True)

    @contextmanager
    def limit_reads(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """In milliseconds, SELECT only; other statements, such as SHOW, wait for the lock of a table for no longer."""
        milliseconds, waits = max(1, round(1000 * seconds)), max(1, math.ceil(seconds))
        with limit_by_variables(connection, {"max_execution_time": milliseconds, "lock_wait_timeout": waits}):
            yield

    @contextmanager
    def limit_waits(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """In whole seconds: for locks of tables, and of rows."""
        waits = max(1, math.ceil(seconds))
        with limit_by_variables(connection, {"lock_wait_timeout": waits, "innodb_lock_wait_timeout": waits}):
            yield

    def isolation(self, connection: BaseDatabaseWrapper) -> str:
        return _isolation(connection, "")

    def write_refusal(self, connection: BaseDatabaseWrapper) -> str:
        """The variable for which the server refuses this account's writes; "" if it does not."""
        with connection.cursor() as cursor:
            # Not as @@names, of which each server knows others.
            cursor.execute("SHOW VARIABLES WHERE Variable_name IN (%s, %s, %s, %s, %s)", _REFUSALS)
            values = {str(name): str(value) for name, value in cursor.fetchall()}
            found = [name for name in _REFUSALS if values.get(name, "OFF") not in ("OFF", "0")]
            if found == ["read_only"]:
                cursor.execute(_EXEMPT)
                found = [] if cursor.fetchone()[0] else found
        return found[0] if found else ""

    def binary_collation(self, connection: BaseDatabaseWrapper) -> str | None:
        """The one that the server has: not every server that speaks MySQL's protocol has MySQL's collations.

        Asked once per session. utf8mb4_bin ignores spaces at the end.
        """

        def look() -> str:
            with connection.cursor() as cursor:
                cursor.execute("SHOW COLLATION WHERE Collation = %s", [self.unpadded_collation])
                return _PADDED if cursor.fetchone() is None else self.unpadded_collation

        connection.ensure_connection()
        return once_per_session(connection, "_jobqueue_collation", look)

    def next_id(self, connection: BaseDatabaseWrapper, table: str) -> int:
        """AUTO_INCREMENT of the table, which may be beyond its rows; information_schema may be a day late."""
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW CREATE TABLE {connection.ops.quote_name(table)}")
            found = re.search(r"\bAUTO_INCREMENT=(\d+)", str(cursor.fetchone()[1]))
        return int(found[1]) if found else 1

    def problems(self, connection: BaseDatabaseWrapper, table: str) -> Iterator[Problem]:
        """Version, engine of the table, isolation, statement-based replication, collations."""
        yield from super().problems(connection, table)
        yield from _server_problems(connection, table)
        if self.binary_collation(connection) != self.unpadded_collation:
            yield Problem(
                "W025",
                f"The server has no collation {self.unpadded_collation}; names are compared by {_PADDED}, for which "
                "'a' and 'a ' are equal.",
                "Let no two names of queues, locks or counters differ only in spaces at their end.",
            )

    def describe(self, connection: BaseDatabaseWrapper) -> str:
        """With what the server calls itself, where that is more than a number: others speak this protocol too."""
        plain = super().describe(connection)
        itself = str(connection.mysql_server_data["version"])  # type: ignore[attr-defined]
        return plain if plain.endswith(f" {itself}") else f"{plain} ({itself})"

    # ---- the set-up
    #: MySQL may have another default format
    explain = "EXPLAIN FORMAT=TRADITIONAL"
    usable = "is_visible = 'YES'"

    def plan(self, connection: BaseDatabaseWrapper, table: str, sql: str, params: Sequence[Parameter]) -> Plan | None:
        """Read the plan from the columns `type` and `Extra` of EXPLAIN."""
        with connection.cursor() as cursor:
            cursor.execute(f"{self.explain} {sql}", params)
            names = [column[0].lower() for column in cursor.description]
            steps = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        lines = [" ".join(f"{name}={value}" for name, value in step.items() if value is not None) for step in steps]
        extras = " ".join(str(step.get("extra") or "") for step in steps).lower()
        return Plan(
            "\n".join(lines),
            scans=any(str(step.get("type")) in ("ALL", "index") for step in steps),
            sorts="filesort" in extras or "using temporary" in extras,
        )

    def indexes(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[TableIndex]:
        """Read information_schema, which has a row per column."""
        found: dict[tuple[str, str], list[str]] = {}
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT table_name, index_name, column_name FROM information_schema.statistics "
                f"WHERE table_schema = DATABASE() AND table_name IN ({marks(tables)}) "
                f"AND {self.usable} ORDER BY table_name, index_name, seq_in_index",
                list(tables),
            )
            for table, name, column in cursor.fetchall():
                found.setdefault((str(table), str(name)), []).append(str(column))
        return [TableIndex(table, name, tuple(columns)) for (table, name), columns in found.items()]

    def grants(self, connection: BaseDatabaseWrapper, account: str, rights: str, tables: Sequence[str]) -> list[str]:
        """A statement for each table. An account without a host is that of any host."""
        name, _, host = account.partition("@")
        words = "@".join("'" + word.replace("\\", "\\\\").replace("'", "''") + "'" for word in (name, host or "%"))
        return [f"GRANT {rights} ON {connection.ops.quote_name(table)} TO {words};" for table in tables]

    def end_session_sql(self, session: int) -> str:
        return f"KILL {session}"

    def analyze_sql(self, table: str) -> str:
        return f"ANALYZE TABLE {table}"

    def session_use(self, connection: BaseDatabaseWrapper) -> SessionUse | None:
        """The smaller limit of the server and of the account."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.max_connections, @@SESSION.max_user_connections")
            most, own = map(int, cursor.fetchone())
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
            used = int(cursor.fetchone()[1])
        return SessionUse(min(most, own) if own else most, used)

    def default_isolation(self, connection: BaseDatabaseWrapper) -> str | None:
        return _isolation(connection, "GLOBAL ")

    def zone_seconds(self, connection: BaseDatabaseWrapper) -> float | None:
        return float(one_value(connection, "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW())"))

    def settings(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """Without sync_binlog if there is no binary log: the server writes nothing to synchronise."""
        names = [*(rule.name for rule in self.rules), self.idle_setting, "log_bin"]
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW VARIABLES WHERE Variable_name IN ({marks(names)})", names)
            found = {str(name).lower(): str(value).lower() for name, value in cursor.fetchall()}
        if found.pop("log_bin", "") != "on":
            found.pop("sync_binlog", None)
        return found


def _isolation(connection: BaseDatabaseWrapper, scope: str) -> str:
    """From the server; MariaDB has the older name of the variable."""
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {scope}VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')")
        return str(cursor.fetchone()[1]).lower().replace("-", " ")


def _server_problems(connection: BaseDatabaseWrapper, job_table: str) -> Iterator[Problem]:
    """Engine of the job table, isolation, statement-based replication."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SHOW VARIABLES WHERE Variable_name IN "
            "('transaction_isolation', 'tx_isolation', 'binlog_format', 'log_bin')"
        )
        found = dict(cursor.fetchall())
        cursor.execute(
            "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s",
            [job_table],
        )
        row = cursor.fetchone()
    if row and str(row[0]).lower() != "innodb":
        yield Problem(
            "E013",
            f"The job table uses engine {row[0]}: no row locks, no transactions.",
            f"ALTER TABLE {job_table} ENGINE=InnoDB",
        )
    isolation = found.get("transaction_isolation") or found.get("tx_isolation")
    if isolation != "READ-COMMITTED":
        yield Problem(
            "W022",
            f"Sessions run at {isolation}: gap locks of your own statements can block enqueueing.",
            'Set OPTIONS["isolation_level"] = "read committed"; claims use it in any case.',
        )
    if found.get("log_bin") == "ON" and found.get("binlog_format") == "STATEMENT":
        yield Problem(
            "W023",
            "The server replicates statements (binlog_format=STATEMENT): a replica may skip other rows.",
            "SET GLOBAL binlog_format = 'ROW'.",
        )


@contextmanager
def limit_by_variables(connection: BaseDatabaseWrapper, limits: Mapping[str, float]) -> Iterator[None]:
    """A block in which these variables of the session are at most so much; one that is 0 means no limit."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(f'@@SESSION.{name}' for name in limits)}")
        before = dict(zip(limits, map(float, cursor.fetchone()), strict=True))

    def assign(values: Mapping[str, float]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET " + ", ".join(f"SESSION {name} = {value:.15g}" for name, value in values.items()))

    assign({name: min(before[name], limit) if before[name] else limit for name, limit in limits.items()})
    with restored(connection, lambda: assign(before)):
        yield


def _limiting(wrapper: Any, variable: str, seconds: float) -> Callable[[bool], None]:
    """_set_autocommit() of this session, with the limit in the same statement."""
    session, plain = wrapper.connection, type(wrapper)._set_autocommit
    # What it has between transactions.
    usual: int = once_per_session(wrapper, _USUAL, lambda: int(one_value(wrapper, f"SELECT @@SESSION.{variable}")))
    short = min(usual or math.inf, math.ceil(seconds))
    begin, end = (f"SET autocommit = {on}, SESSION {variable} = {limit}" for on, limit in ((0, short), (1, usual)))

    def set_autocommit(on: bool) -> None:
        if wrapper.connection is session:
            # Without Django's cursor, as its own statement about autocommit.
            with wrapper.wrap_database_errors, session.cursor() as cursor:
                cursor.execute(end if on else begin)
        # The driver sends nothing where autocommit is as it is to be.
        plain(wrapper, on)

    return set_autocommit
