"""MariaDB 10.6 and later: MySQL with RETURNING on INSERT and its own collations."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.dialect import Dialect
from jobqueue.db.mariadb.diagnostics import MariaDBDiagnostics
from jobqueue.db.mariadb.locks import MariaDBLocks
from jobqueue.db.mysql.dialect import MySQL
from jobqueue.db.parameters import Parameter


class MariaDB(MySQL):
    """Where MariaDB differs from MySQL."""

    name = "MariaDB"
    unpadded_collation = "utf8mb4_nopad_bin"
    oldest = (10, 6, 0)
    locks = MariaDBLocks()
    diagnostics = MariaDBDiagnostics()

    def json_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Parameter:
        """As it is: JSON is kept as it was written, and statements of others are shown whatever is in them."""
        return text

    def text_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Parameter:
        return text

    def insert(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], rows: Sequence[Sequence[Parameter]]
    ) -> list[int]:
        return Dialect.insert(self, connection, table, columns, rows)

    def insert_one(
        self, connection: BaseDatabaseWrapper, table: str, columns: Sequence[str], row: Sequence[Parameter], also: str
    ) -> tuple[int, Parameter]:
        return Dialect.insert_one(self, connection, table, columns, row, also)
