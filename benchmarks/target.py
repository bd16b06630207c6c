"""The database server under measurement, used through its driver."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_DURABILITY = {
    "mysql": ("innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog", "innodb_doublewrite"),
    "mariadb": ("innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog", "innodb_doublewrite"),
    "postgres": ("fsync", "synchronous_commit", "full_page_writes", "wal_level"),
}


@dataclass(frozen=True)
class Target:
    """One database on one server. For sqlite `url` is a folder and `name` a file in it."""

    kind: str
    url: str
    name: str

    @property
    def mysql_like(self) -> bool:
        """Whether it is MySQL or MariaDB, which share a driver and most of their SQL."""
        return self.kind in ("mysql", "mariadb")

    def sibling(self, suffix: str) -> Target:
        """Another database on the same server."""
        return replace(self, name=f"{self.name}_{suffix}")

    def connect(self, name: str | None = None) -> Any:
        """A driver connection in autocommit mode, READ COMMITTED; `name` None = this database."""
        if self.kind == "sqlite":
            connection = sqlite3.connect(self.path, isolation_level=None, timeout=20)
            connection.execute("PRAGMA journal_mode=WAL")
            return connection
        parts = urlsplit(self.url)
        common = {"host": parts.hostname, "port": parts.port, "user": unquote(parts.username or "")}
        password = unquote(parts.password or "")
        if self.kind == "postgres":
            import psycopg

            dbname = name or self.name
            return psycopg.connect(**common, password=password, dbname=dbname, autocommit=True)
        import MySQLdb

        database = {"database": name or self.name}
        connection = MySQLdb.connect(**common, password=password, charset="utf8mb4", autocommit=True, **database)
        execute(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection

    @property
    def path(self) -> Path:
        """The file of an SQLite database."""
        return Path(self.url, f"{self.name}.sqlite3")

    def create(self) -> None:
        """Create an empty database."""
        self.drop()
        if self.kind != "sqlite":
            charset = " CHARACTER SET utf8mb4" if self.mysql_like else ""
            self._as_admin(f"CREATE DATABASE {self.name}{charset}")

    def drop(self) -> None:
        """Drop the database if it exists."""
        if self.kind == "sqlite":
            for end in ("", "-wal", "-shm"):
                Path(f"{self.path}{end}").unlink(missing_ok=True)
            return
        force = " WITH (FORCE)" if self.kind == "postgres" else ""
        self._as_admin(f"DROP DATABASE IF EXISTS {self.name}{force}")

    def _as_admin(self, statement: str) -> None:
        connection = self.connect(urlsplit(self.url).path.strip("/"))
        with suppress(Exception):
            execute(connection, "SET SESSION sql_notes = 0")
        execute(connection, statement)
        connection.close()

    def describe(self) -> dict[str, Any]:
        """The version, and the settings on which the cost of a commit depends."""
        connection = self.connect()
        if self.kind == "sqlite":
            modes = {name: rows(connection, f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous")}
            return {"version": f"SQLite {sqlite3.sqlite_version}", "durability": modes}
        show = "SHOW {}" if self.kind == "postgres" else "SELECT @@{}"
        found = {name: str(rows(connection, show.format(name))[0][0]) for name in _DURABILITY[self.kind]}
        version = str(rows(connection, "SELECT version()")[0][0])
        connection.close()
        return {"version": version.split(" on ")[0], "durability": found}

    def server_pid(self) -> int | None:
        """The server's process, if tests.servers started it."""
        folder = os.environ.get("JOBQUEUE_TEST_SERVERS_STATE")
        if self.kind == "sqlite" or not folder:
            return None
        with suppress(OSError, ValueError, KeyError):
            return int(json.loads(Path(folder, "state.json").read_text())["servers"][self.kind]["pid"]) or None
        return None

    def counters(self, connection: Any) -> dict[str, int] | None:
        """Statements (PostgreSQL: transactions) and deadlocks since the server started."""
        if self.kind == "sqlite":
            return None
        if self.kind == "postgres":
            execute(connection, "SELECT pg_stat_clear_snapshot()")
            sql = "SELECT xact_commit + xact_rollback, deadlocks FROM pg_stat_database WHERE datname = %s"
            ((done, deadlocks),) = rows(connection, sql, [self.name])
            return {"statements": int(done), "deadlocks": int(deadlocks)}
        deadlocks = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
        ((_, statements),) = rows(connection, "SHOW GLOBAL STATUS LIKE 'Questions'")
        return {"statements": int(statements), "deadlocks": int(rows(connection, deadlocks)[0][0])}

    def open_snapshot(self) -> Any:
        """A connection whose transaction has a snapshot of the database of this moment."""
        connection = self.connect()
        if self.mysql_like:
            execute(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            execute(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        else:
            execute(connection, "BEGIN" if self.kind == "sqlite" else "BEGIN ISOLATION LEVEL REPEATABLE READ")
        rows(connection, "SELECT COUNT(*) FROM bench_numbers")
        return connection


def execute(connection: Any, sql: str, params: Sequence[Any] = ()) -> Any:
    """Run one statement. Returns its cursor."""
    cursor = connection.cursor()
    cursor.execute(sql, tuple(params) or ()) if params else cursor.execute(sql)
    return cursor


def rows(connection: Any, sql: str, params: Sequence[Any] = ()) -> list[Any]:
    """Run one statement. Returns its rows."""
    return list(execute(connection, sql, params).fetchall())


def from_environment() -> Target:
    """The target of a worker process."""
    return Target(os.environ["BENCH_DB"], os.environ["BENCH_URL"], os.environ["BENCH_NAME"])


def environment(target: Target) -> dict[str, str]:
    """The environment variables for from_environment() and the settings."""
    return {"BENCH_DB": target.kind, "BENCH_URL": target.url, "BENCH_NAME": target.name}
