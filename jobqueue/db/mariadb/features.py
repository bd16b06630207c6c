"""MariaDB 10.6 and later: MySQL with RETURNING on INSERT and its own collations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.dialect import Dialect
from jobqueue.db.mariadb.diagnostics import MariaDBDiagnostics
from jobqueue.db.mariadb.locks import MariaDBLocks
from jobqueue.db.mariadb.statements import MariaDBStatements
from jobqueue.db.mysql.features import MySQL, limit_by_variables


class MariaDB(MariaDBStatements, MySQL):
    """Where MariaDB differs from MySQL."""

    name = "MariaDB"
    unpadded_collation = "utf8mb4_nopad_bin"
    oldest = (10, 6)
    locks = MariaDBLocks()
    diagnostics = MariaDBDiagnostics()
    explain = "EXPLAIN"
    usable = "ignored = 'NO'"
    idle_variable = "idle_transaction_timeout"

    # As it is: JSON is kept as it was written, and statements of others are shown whatever is in them.
    json_parameter = Dialect.json_parameter
    text_parameter = Dialect.text_parameter

    def limit_idle_transactions(self, connection: BaseDatabaseWrapper, seconds: float) -> None:
        """idle_transaction_timeout, in whole seconds."""
        own, limit = f"@@SESSION.{self.idle_variable}", math.ceil(seconds)
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION {self.idle_variable} = IF({own} BETWEEN 1 AND {limit}, {own}, {limit})")

    @contextmanager
    def limit_reads(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """In seconds; it limits every statement."""
        with limit_by_variables(connection, {"max_statement_time": max(0.001, seconds)}):
            yield
