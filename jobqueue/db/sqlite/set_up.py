"""The set-up of a SQLite file: its pragmas and its plans."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.parameters import Parameter
from jobqueue.db.set_up import Plan, SetUp, TableIndex
from jobqueue.db.sockets import one_value


class SQLiteSetUp(SetUp):
    """SQLite 3.35 and later."""

    def plan(self, connection: BaseDatabaseWrapper, table: str, sql: str, params: Sequence[Parameter]) -> Plan | None:
        """Read EXPLAIN QUERY PLAN."""
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            lines = [str(row[-1]) for row in cursor.fetchall()]
        return Plan(
            "\n".join(lines),
            scans=any(line.startswith("SCAN") and table in line for line in lines),
            sorts=any("TEMP B-TREE" in line for line in lines),
        )

    def indexes(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[TableIndex]:
        """From the pragmas. SQLite forgets the names of unique constraints."""
        found: dict[tuple[str, str], list[str]] = {}
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT m.name, l.name, c.name FROM sqlite_master m, pragma_index_list(m.name) l, "
                f"pragma_index_info(l.name) c WHERE m.type = 'table' AND m.name IN ({', '.join(['%s'] * len(tables))}) "
                "ORDER BY m.name, l.name, c.seqno",
                list(tables),
            )
            for table, name, column in cursor.fetchall():
                found.setdefault((str(table), str(name)), []).append(str(column))
        return [
            TableIndex(table, "" if name.startswith("sqlite_autoindex_") else name, tuple(columns))
            for (table, name), columns in found.items()
        ]

    def values(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """The pragmas journal_mode and busy_timeout (milliseconds), and "file", "" for a database in memory."""
        found = {name: str(one_value(connection, f"PRAGMA {name}")) for name in ("journal_mode", "busy_timeout")}
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA database_list")
            files = {str(name): str(file or "") for _, name, file in cursor.fetchall()}
        return {**found, "file": files.get("main", "")}
