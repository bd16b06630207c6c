"""The database server's clock in UTC: the only clock for leases and due times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Func, Value
from django.db.models.expressions import Combinable
from django.db.models.sql.compiler import SQLCompiler

from jobqueue.db import vendor_of
from jobqueue.db.expressions import VendorFunc
from jobqueue.db.fields import UtcDateTimeField
from jobqueue.db.statements import Parameter, Statement, one_value


class UtcNow(Func):
    """The start of the statement by the database server's clock, in UTC whatever the session's zone."""

    arity = 0

    def __init__(self, **extra: bool) -> None:
        super().__init__(output_field=UtcDateTimeField(), **extra)

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Statement:  # type: ignore[override]
        return vendor_of(connection).now_sql, []


class UtcNowPlus(VendorFunc):
    """UtcNow plus a number of seconds: a plain number or an expression over columns."""

    template_name = "now_plus_sql"

    def __init__(self, seconds: float | Combinable, **extra: bool) -> None:
        value = Value(float(seconds)) if isinstance(seconds, (int, float)) else seconds
        super().__init__(value, output_field=UtcDateTimeField(), **extra)


class Selected(VendorFunc):
    """An instant among many rows of selected columns, in the form that is read fastest.

    Not for ORDER BY: sorted by it, rows do not come in index order.
    """

    template_name = "selected_instant_sql"

    def __init__(self, instant: Combinable | str, **extra: bool) -> None:
        super().__init__(instant, output_field=UtcDateTimeField(), **extra)

    def select_format(self, compiler: SQLCompiler, sql: str, params: Sequence[Parameter]) -> Statement:
        """Return the SQL unchanged: it is bounded already."""
        return sql, params


class Stored(Func):
    """An instant among the columns of an INSERT ... SELECT: as its column has it."""

    template = "%(expressions)s"
    arity = 1

    def select_format(self, compiler: SQLCompiler, sql: str, params: Sequence[Parameter]) -> Statement:
        """Return the SQL unchanged: Python does not read it."""
        return sql, params


#: how far clocks of hosts may differ from that of the server; a good NTP never lets it happen
SKEW_SECONDS = 1.0


def read_now(using: str) -> datetime:
    """The database server's time right now, aware UTC. One round trip."""
    connection = connections[using]
    value = one_value(connection, f"SELECT {vendor_of(connection).now_sql}", ())
    found = UtcDateTimeField().from_db_value(value, None, connection)
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """The clock of this host and that of the database server, read at the same time, but for the round trip.

    `ahead_seconds` is below 0 if the host is behind. What the round trip took is no difference.
    """

    host: datetime
    server: datetime
    ahead_seconds: float


def compare_clocks(using: str) -> ClockDifference:
    """Compare this host's clock with that of the database server. One round trip."""
    begun = host_now()
    there = read_now(using)
    ended = host_now()
    ahead = max((begun - there).total_seconds(), 0.0) - max((there - ended).total_seconds(), 0.0)
    return ClockDifference(begun, there, ahead)


def host_now() -> datetime:
    """This host's clock, aware whatever USE_TZ says: django.utils.timezone.now() is naive without it."""
    return datetime.now(UTC)
