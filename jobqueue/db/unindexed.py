"""A column that the optimizer must not look up by."""

from __future__ import annotations

from typing import Any

from django.db.models import Func, IntegerField

from jobqueue.db import vendor_of


class Unindexed(Func):
    """The value of an integer column, written so that no index on it can be used in a WHERE.

    InnoDB locks every row an UPDATE reads on its way. With few rows in the table, MariaDB and MySQL may find
    `id = 7 AND status = 1` through an index on status, and then wait for every other row in that state.
    """

    arity = 1
    output_field = IntegerField()

    def as_sql(self, compiler: Any, connection: Any, **context: Any) -> Any:  # type: ignore[override]
        """The vendor's expression around the column."""
        return super().as_sql(compiler, connection, template=vendor_of(connection).unindexed_sql, **context)
