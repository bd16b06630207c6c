"""The set-up of a MySQL or MariaDB server: variables, sessions, plans."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.mysql.diagnostics import NO_PROCESS_RIGHT, ask
from jobqueue.db.parameters import Parameter
from jobqueue.db.set_up import OldTransaction, Plan, SessionUse, SetUp, TableIndex
from jobqueue.db.sockets import one_value

VARIABLES = (
    "innodb_flush_log_at_trx_commit",
    "sync_binlog",
    "log_bin",
    "innodb_lock_wait_timeout",
    "wait_timeout",
)
# Instants of INNODB_TRX have the zone of the server's host.
_OLD = """
SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), UTC_TIMESTAMP()) AS age,
  trx_query IS NULL, trx_rows_locked > 0 OR trx_rows_modified > 0
FROM information_schema.innodb_trx WHERE trx_mysql_thread_id NOT IN (0, CONNECTION_ID())
HAVING age >= %s ORDER BY age DESC LIMIT %s
"""


class MySQLSetUp(SetUp):
    """MySQL 8.0 and later, and MariaDB."""

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
                f"WHERE table_schema = DATABASE() AND table_name IN ({', '.join(['%s'] * len(tables))}) "
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

    def session_use(self, connection: BaseDatabaseWrapper) -> SessionUse | None:
        """The smaller limit of the server and of the account."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.max_connections, @@SESSION.max_user_connections")
            most, own = map(int, cursor.fetchone())
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
            used = int(cursor.fetchone()[1])
        return SessionUse(min(most, own) if own else most, used)

    def default_isolation(self, connection: BaseDatabaseWrapper) -> str | None:
        """MariaDB has the older name of the variable."""
        with connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')")
            return str(cursor.fetchone()[1]).lower().replace("-", " ")

    def zone_seconds(self, connection: BaseDatabaseWrapper) -> float | None:
        """The zone of the session."""
        return float(one_value(connection, "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW())"))

    def values(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """System variables."""
        names = ", ".join(f"'{name}'" for name in VARIABLES)
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW VARIABLES WHERE Variable_name IN ({names})")
            return {str(name).lower(): str(value).lower() for name, value in cursor.fetchall()}

    def old_transactions(
        self, connection: BaseDatabaseWrapper, table: str, seconds: float, limit: int
    ) -> list[OldTransaction]:
        """From InnoDB's list of transactions, which needs PROCESS."""
        rows = ask(connection, _OLD, [seconds, limit], NO_PROCESS_RIGHT)
        return [
            OldTransaction(int(session), float(age), bool(idles), bool(locks)) for session, age, idles, locks in rows
        ]


class MariaDBSetUp(MySQLSetUp):
    """MariaDB 10.6 and later."""

    explain = "EXPLAIN"
    usable = "ignored = 'NO'"
