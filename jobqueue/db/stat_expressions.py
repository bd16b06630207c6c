"""Expressions over rows of statistics. A page adds up tens of thousands of them, so what each row costs counts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BigIntegerField, ExpressionWrapper, F, Func, QuerySet, TextField
from django.db.models.expressions import Combinable
from django.db.models.sql.compiler import SQLCompiler

from jobqueue.db.parameters import Statement


class Addend(Func):
    """An integer in the form whose sum is fastest.

    MySQL adds up integers as decimals. As floats the sums of a page take two thirds of the time; they are exact below
    2**53, which are 285 years in microseconds.
    """

    template = "%(expressions)s"
    arity = 1

    def __init__(self, number: Combinable | str) -> None:
        super().__init__(number, output_field=BigIntegerField())

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Statement:
        """MariaDB too."""
        return self.as_sql(compiler, connection, template="(%(expressions)s + 0e0)", **context)


class PartNumber(Func):
    """The number of parts of this `length` between 1970 and an instant.

    Rows are grouped by a number at less cost than by an instant, which MySQL looks up row by row in an index. There are
    fewer groups, too, and Python reads a number faster.
    """

    # A day has 86,400 seconds in UTC.
    template = "(FLOOR(EXTRACT(EPOCH FROM %(expressions)s))::bigint / %(size)s)"
    arity = 1

    def __init__(self, instant: str, length: timedelta) -> None:
        super().__init__(instant, output_field=BigIntegerField(), size=int(length.total_seconds()))

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Statement:
        """TO_SECONDS() counts from the year 0."""
        template = "((TO_SECONDS(%(expressions)s) - 62167219200) DIV %(size)s)"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Statement:
        """Without fractions of a second, which it rounds; %%%%s is %s once Django and its driver have read it."""
        template = "(CAST(STRFTIME('%%%%s', SUBSTR(%(expressions)s, 1, 19)) AS INTEGER) / %(size)s)"
        return self.as_sql(compiler, connection, template=template, **context)


def raw_rows(rows: QuerySet[Any, Any]) -> list[tuple[Any, ...]]:
    """The rows of a queryset of values as the driver gives them: Django would convert each of their numbers."""
    try:
        sql, params = rows.query.get_compiler(rows.db).as_sql()
    except EmptyResultSet:
        return []
    with connections[rows.db].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def as_text(column: str) -> ExpressionWrapper[F]:
    """A column of JSON as the text that the driver reads: Django would decode the values of each row."""
    return ExpressionWrapper(F(column), output_field=TextField())
