"""MariaDB 10.6 and later: MySQL with RETURNING on INSERT and its own collations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q, QuerySet

from jobqueue.db.dialect import Dialect
from jobqueue.db.mariadb.diagnostics import MariaDBDiagnostics
from jobqueue.db.mariadb.locks import MariaDBLocks
from jobqueue.db.mysql import hints
from jobqueue.db.mysql.dialect import MySQL
from jobqueue.db.mysql.session import limit_by_variables
from jobqueue.db.mysql.set_up import MariaDBSetUp

#: a longer list of values becomes a temporary table and a sort (in_predicate_conversion_threshold, 1000 by default)
LISTED_MAX = 999
Rows = TypeVar("Rows", bound=QuerySet[Any])


class MariaDB(MySQL):
    """Where MariaDB differs from MySQL."""

    name = "MariaDB"
    unpadded_collation = "utf8mb4_nopad_bin"
    oldest = (10, 6, 0)
    locks = MariaDBLocks()
    diagnostics = MariaDBDiagnostics()
    set_up = MariaDBSetUp()

    idle_variable = "idle_transaction_timeout"

    # As it is: JSON is kept as it was written, and statements of others are shown whatever is in them.
    json_parameter = Dialect.json_parameter
    text_parameter = Dialect.text_parameter
    # INSERT ... RETURNING
    insert = Dialect.insert
    insert_one = Dialect.insert_one

    def of_ids(self, queryset: Rows, ids: Sequence[int]) -> Rows:
        """As that of MySQL, in lists of LISTED_MAX ids."""
        wanted = Q()
        for begin in range(0, len(ids), LISTED_MAX):
            wanted |= Q(pk__in=ids[begin : begin + LISTED_MAX])
        return hints.force_index(queryset.filter(wanted), "PRIMARY")

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
