"""Expressions and lookups that Django does not have: values that each run of a statement brings, and index hints."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import (
    BigIntegerField,
    BooleanField,
    Expression,
    ExpressionWrapper,
    F,
    Field,
    Func,
    IntegerField,
    Lookup,
    TextField,
)
from django.db.models.expressions import Combinable
from django.db.models.sql.compiler import SQLCompiler

from jobqueue.db import vendor_of
from jobqueue.db.fields import NameField, PayloadField
from jobqueue.db.statements import Parameter, Statement, placeholder


class Slot(Expression):
    """Stands in a queryset for a value that each run brings, by name."""

    def __init__(self, name: str, field: Field[Any, Any]) -> None:
        super().__init__(output_field=field)
        self.name = name

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Statement:
        """A parameter; the slot itself is what marks its place."""
        return "%s", [self]

    def render(self, value: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Parameter]]:
        """The SQL and parameters of one value."""
        parameter = self.output_field.get_db_prep_save(value, connection)
        return placeholder(parameter), [parameter]


class Keys(Slot):
    """A slot for integers behind IN; they are written into the text, which drivers send far faster than parameters."""

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Statement:
        return "(%s)", [self]

    def render(self, value: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Parameter]]:
        return ",".join(str(int(key)) for key in value), []


class ByKey(Slot):
    """CASE id WHEN 1 THEN ... END: the value of each row by its primary key, NULL for all others.

    A run brings a dict. Django's Case does the same at several times the cost: it resolves a query per branch.
    """

    def __init__(self, name: str, field: Field[Any, Any] | None = None) -> None:
        super().__init__(name, field or PayloadField())

    def render(self, value: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Parameter]]:
        """One WHEN per row; the values are parameters."""
        if not value:
            return "NULL", []
        field: Any = self.output_field
        branches = " ".join(f"WHEN {int(key)} THEN %s" for key in value)
        values = [field.get_db_prep_value(one, connection) for one in value.values()]
        return f"CASE {connection.ops.quote_name('id')} {branches} END", values


class VendorFunc(Func):
    """A function of one argument; its SQL is the attribute `template_name` of the vendor's dialect."""

    arity = 1
    template_name = ""

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Statement:  # type: ignore[override]
        template = getattr(vendor_of(connection), self.template_name)
        return super().as_sql(compiler, connection, template=template, **context)


class Unindexed(VendorFunc):
    """The value of an integer column, written so that no index on it can be used in a WHERE.

    InnoDB locks every row an UPDATE reads on its way. With few rows in the table, MariaDB and MySQL may find
    `id = 7 AND status = 1` through an index on status, and then wait for every other row in that state. PostgreSQL uses
    such an index where its statistics say that no row has the status; it has an entry for each row that had the status
    since the oldest open snapshot. SQLite, which nobody analyzes, prefers it to a list of ids, and reads all jobs that
    wait.
    """

    template_name = "unindexed_sql"
    output_field = IntegerField()


class Unestimated(Expression):
    """A value to compare a column with, such that the plan does not depend on how common it was.

    PostgreSQL may have analyzed a queue while it was idle, or before it had its first job. It then expects no row with
    status 0, or none of the queue, takes any index that begins with the column, and reads and sorts all jobs that have
    come since.
    """

    def __init__(self, value: int | str) -> None:
        super().__init__(output_field=IntegerField() if isinstance(value, int) else NameField())
        self._value = value

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Statement:
        """A number is in the text: a parameter would have no type where nothing is compared with it."""
        sql = vendor_of(connection).unestimated_sql
        return (sql % self._value, []) if isinstance(self._value, int) else (sql % "%s", [self._value])


class UnestimatedSlot(Slot):
    """A slot for such a value."""

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Statement:
        return vendor_of(connection).unestimated_sql % "%s", [self]


class Behind(Func):
    """(a, b) > (x, y), where the dialect says that this is one range of an index which has two of these last."""

    output_field = BooleanField()
    arity = 4

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Statement:  # type: ignore[override]
        (a, p), (b, q), (x, r), (y, s) = (compiler.compile(part) for part in self.get_source_expressions())
        return f"({a}, {b}) > ({x}, {y})", [*p, *q, *r, *s]


if TYPE_CHECKING:
    _Lookup = Lookup[Any]
else:
    # Generic in its type stubs only.
    _Lookup = Lookup


class AnyOf(_Lookup):
    """expression IN (the keys of a slot), which brings the parentheses."""

    lookup_name = "any_of"
    prepare_rhs = False
    template = "{} IN {}"

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Statement:
        left, left_params = self.process_lhs(compiler, connection)
        right, right_params = self.process_rhs(compiler, connection)
        return self.template.format(left, right), [*left_params, *right_params]


class AnyOfArray(AnyOf):
    """expression = ANY (the one column of a subquery, which runs once and before anything else).

    A plan that joined the subquery could run it again for every row, and take more rows than its LIMIT.
    """

    lookup_name = "any_of_array"
    template = "{} = ANY (ARRAY{})"


class Addend(VendorFunc):
    """An integer in the form whose sum is fastest."""

    template_name = "addend_sql"

    def __init__(self, number: Combinable | str) -> None:
        super().__init__(number, output_field=BigIntegerField())


class PartNumber(VendorFunc):
    """The number of parts of this `length` between 1970 and an instant.

    Rows are grouped by a number at less cost than by an instant, which MySQL looks up row by row in an index. There are
    fewer groups, too, and Python reads a number faster.
    """

    template_name = "part_number_sql"

    def __init__(self, instant: str, length: timedelta) -> None:
        super().__init__(instant, output_field=BigIntegerField(), size=int(length.total_seconds()))


def as_text(column: str) -> ExpressionWrapper[F]:
    """A column of JSON as the text that the driver reads: Django would decode the values of each row."""
    return ExpressionWrapper(F(column), output_field=TextField())
