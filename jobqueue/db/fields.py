"""Columns with exact types: what the contract promises to programs that speak plain SQL."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import lookups
from django.db.models.sql.compiler import SQLCompiler
from django.utils.dateparse import parse_datetime

from jobqueue.base.payload import decode
from jobqueue.db import vendor_of
from jobqueue.db.statements import Parameter, Statement, placeholder
from jobqueue.exceptions import PayloadError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: the value of a column that holds no valid instant
LONG_AGO = datetime(1, 1, 2, tzinfo=UTC)


class _Typed:
    """A field whose column has the vendor's type of this `kind`, or Django's own."""

    kind = ""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        return vendor_of(connection).column_types.get(self.kind) or super().db_type(connection)  # type: ignore[misc]


class UnsignedBigAutoField(models.BigAutoField):
    """BIGINT UNSIGNED AUTO_INCREMENT on MySQL; the natural 64-bit identity elsewhere."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        return vendor_of(connection).column_types.get("bigauto") or super().db_type(connection)

    def rel_db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        """The type of a column that refers to this one."""
        return vendor_of(connection).column_types.get("bigauto_rel") or super().rel_db_type(connection)


class JobIdField(_Typed, models.BigIntegerField):
    """A job's id in another table, without a foreign key: history outlives the job, and inserts lock nothing."""

    kind = "bigauto_rel"


class TinyIntegerField(_Typed, models.SmallIntegerField):
    """TINYINT on MySQL, SMALLINT elsewhere."""

    kind = "tiny"


class _Placed:
    """A field whose values stand at placeholder() in INSERT, UPDATE and Value()."""

    def get_placeholder(self, value: object, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> str:
        """Of a value for the driver, or of an expression."""
        return placeholder(value)

    def get_placeholder_sql(self, value: Any, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Statement:
        """The same, under the name and in the form that Django 6.1 asks for."""
        return compiler.compile(value) if hasattr(value, "as_sql") else (placeholder(value), (value,))


class _TextField(_Placed):
    """A field of text that is readable in the text of a statement (mysql.statements.Hex) and compares byte for byte."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)  # type: ignore[misc]
        parameters["collation"] = vendor_of(connection).binary_collation(connection)
        return parameters

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Parameter:
        if type(value) is not str:  # else there is nothing to convert, and every job has several of these
            value = super().get_db_prep_value(value, connection, prepared)  # type: ignore[misc]
        return vendor_of(connection).text_parameter(connection, value) if isinstance(value, str) else value


class NameField(_TextField, models.CharField):
    """VARCHAR that compares byte for byte: no case folding, no accent folding, no padding."""


class ErrorField(_Typed, _TextField, models.TextField):
    """TEXT on MySQL (64 KB, in utf8mb4 even where the database's own character set is smaller)."""

    kind = "text"


class _BytesField(_Typed, _Placed, models.BinaryField):
    def from_db_value(self, value: Any, expression: object, connection: BaseDatabaseWrapper) -> bytes | None:
        return None if value is None else bytes(value)

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Parameter:
        return None if value is None else vendor_of(connection).binary_parameter(connection, value)


if TYPE_CHECKING:
    _Mixin = lookups.Lookup[Any]
else:
    _Mixin = object


class _PlacedLookup(_Mixin):
    """A lookup whose values stand at placeholder(); Django's own know %s only."""

    def get_db_prep_lookup(self, value: Any, connection: BaseDatabaseWrapper) -> Statement:
        sql, params = super().get_db_prep_lookup(value, connection)
        return (placeholder(params[0]) if len(params) == 1 else sql), params

    def resolve_expression_parameter(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, sql: str, param: Parameter
    ) -> Statement:
        found: Statement = super().resolve_expression_parameter(  # type: ignore[misc]
            compiler, connection, placeholder(param), param
        )
        return found


for _lookup in (
    lookups.Exact,
    lookups.In,
    lookups.GreaterThan,
    lookups.GreaterThanOrEqual,
    lookups.LessThan,
    lookups.LessThanOrEqual,
    lookups.Range,
):
    for _field in (_BytesField, NameField, ErrorField):
        _field.register_lookup(type(_lookup.__name__, (_PlacedLookup, _lookup), {}))


class TokenField(_BytesField):
    """BINARY(16) on MySQL: a lease token, byte for byte what UUID_TO_BIN(uuid) gives."""

    kind = "token"


class KeyField(_BytesField):
    """VARBINARY(64) on MySQL: a key that is compared byte for byte."""

    kind = "key"


class Encoded(str):
    """JSON text that payload.encode has checked; PayloadField writes it as it is."""

    __slots__ = ()


class _Longest(threading.local):
    """The longest text of each thread."""

    chars = 0


_longest = _Longest()


def longest_payload() -> int:
    """The length in characters of the longest payload that this thread has read since its last call."""
    found, _longest.chars = _longest.chars, 0
    return found


class PayloadField(models.JSONField):
    """JSON that another program may have written: for what cannot be decoded the value is the PayloadError itself.

    One such row must not fail the claim of a batch: only its job fails, with cause FORMAT.
    """

    def from_db_value(self, value: Any, expression: object, connection: BaseDatabaseWrapper) -> Any:
        if value is None:
            return None
        if not isinstance(value, (str, bytes)):
            return value
        _longest.chars = max(_longest.chars, len(value))
        try:
            return decode(value)
        except PayloadError as error:
            return error

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Parameter:
        """Encoded text goes to the driver without a second encoding."""
        if isinstance(value, Encoded):
            return vendor_of(connection).json_parameter(connection, value)
        return super().get_db_prep_value(value, connection, prepared)


def _parsed(text: str) -> datetime:
    """An instant; LONG_AGO for a value of plain SQL that is none, such as 0000-00-00 on MySQL.

    A claim must be able to read every row: one that it cannot read would end every worker.
    """
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    return LONG_AGO if found is None else found


class UtcDateTimeField(models.DateTimeField):
    """An instant, stored in UTC whatever USE_TZ, TIME_ZONE and the database's own zone say; aware in Python."""

    def get_internal_type(self) -> str:
        """Its own name: for DateTimeField Django's converters would apply the zones of the settings."""
        return "UtcDateTimeField"

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        """DATETIME(6) on MySQL, TIMESTAMP WITH TIME ZONE on PostgreSQL."""
        return vendor_of(connection).column_types.get("instant", "datetime")

    def db_check(self, connection: BaseDatabaseWrapper) -> None:
        return None

    def get_prep_value(self, value: Any) -> Any:
        """Aware, in UTC. validation.check_instant has refused naive values before."""
        value = self.to_python(value)
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return value

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Parameter:
        """Naive UTC text with six digits where the database has no zones, the aware value on PostgreSQL."""
        if not prepared:
            value = self.get_prep_value(value)
        if isinstance(value, datetime) and vendor_of(connection).stores_utc_naive:
            return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return value

    def select_format(self, compiler: SQLCompiler, sql: str, params: Sequence[Parameter]) -> Statement:
        """In the outermost SELECT bounded to what Python can hold, where the database has infinity and years BC."""
        template = vendor_of(compiler.connection).bounded_instant_sql
        if template is None or compiler.query.subquery:
            return sql, params
        return template % {"instant": sql}, tuple(params) * template.count("%(instant)s")

    def from_db_value(self, value: Any, expression: object, connection: BaseDatabaseWrapper) -> datetime | None:
        if isinstance(value, str):
            value = _parsed(value)
        elif isinstance(value, int):
            return _EPOCH + timedelta(microseconds=value)
        if value is None:
            return None
        if value.tzinfo is None:
            zone = UTC if vendor_of(connection).stores_utc_naive else ZoneInfo(settings.TIME_ZONE)
            value = value.replace(tzinfo=zone)
        utc: datetime = value if value.tzinfo is UTC else value.astimezone(UTC)
        return utc
