"""MariaDB 10.6 and later: MySQL with RETURNING on INSERT and its own collations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.base import Vendor
from jobqueue.db.held import HeldLocks
from jobqueue.db.mariadb_held import mariadb_held
from jobqueue.db.mariadb_monitor import MariaDBMonitor
from jobqueue.db.mysql import MySQL


class MariaDB(MySQL):
    """Where MariaDB differs from MySQL."""

    name = "MariaDB"
    binary_collation = "utf8mb4_nopad_bin"
    oldest = (10, 6, 0)
    monitor = MariaDBMonitor()

    def json_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Any:
        """As it is: JSON is kept as it was written, and statements of others are shown whatever is in them."""
        return text

    def text_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Any:
        """As it is."""
        return text

    def insert(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> list[int]:
        """INSERT ... RETURNING id."""
        return Vendor.insert(self, connection, table, columns, rows)

    def insert_one(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], row: Sequence[Any]
    ) -> tuple[int, Any]:
        """INSERT ... RETURNING id, created_at."""
        return Vendor.insert_one(self, connection, table, columns, row)

    def held_locks(self, connection: BaseDatabaseWrapper) -> HeldLocks:
        """The InnoDB monitor: the only place that lists locks nobody waits for."""
        return mariadb_held(connection)
