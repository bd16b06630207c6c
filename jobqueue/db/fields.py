"""Columns with exact types: what the contract promises to programs that speak plain SQL."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import lookups
from django.utils.dateparse import parse_datetime

from jobqueue.db import vendor_of
from jobqueue.db.binary import place
from jobqueue.exceptions import PayloadError
from jobqueue.payload import decode

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: what stands for an instant that is none
LONG_AGO = datetime(1, 1, 2, tzinfo=UTC)


class UnsignedBigAutoField(models.BigAutoField):
    """BIGINT UNSIGNED AUTO_INCREMENT on MySQL; the natural 64-bit identity elsewhere."""

    def db_type(self, connection: BaseDatabaseWrapper) -> Any:
        """The column type, or Django's own."""
        return vendor_of(connection).column_types.get("bigauto") or super().db_type(connection)

    def rel_db_type(self, connection: BaseDatabaseWrapper) -> Any:
        """The type of a column that refers to this one."""
        return vendor_of(connection).column_types.get("bigauto_rel") or super().rel_db_type(connection)


class JobIdField(models.BigIntegerField):
    """A job's id in another table, without a foreign key: history outlives the job, and inserts lock nothing."""

    def db_type(self, connection: BaseDatabaseWrapper) -> Any:
        """BIGINT UNSIGNED on MySQL."""
        return vendor_of(connection).column_types.get("bigauto_rel") or super().db_type(connection)


class TinyIntegerField(models.SmallIntegerField):
    """TINYINT on MySQL, SMALLINT elsewhere."""

    def db_type(self, connection: BaseDatabaseWrapper) -> Any:
        """The column type."""
        return vendor_of(connection).column_types.get("tiny") or super().db_type(connection)


class _Placed:
    """A field whose values stand at binary.place() in INSERT, UPDATE and Value()."""

    def get_placeholder(self, value: Any, compiler: Any, connection: BaseDatabaseWrapper) -> str:
        """Of a value for the driver, or of an expression."""
        return place(value)

    def get_placeholder_sql(self, value: Any, compiler: Any, connection: BaseDatabaseWrapper) -> Any:
        """The same, under the name and in the form that Django 6.1 asks for."""
        return compiler.compile(value) if hasattr(value, "as_sql") else (place(value), (value,))


class _TextField(_Placed):
    """A field of text that is readable in the text of a statement, see binary.py, and compares byte for byte."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        """Django's parameters with the database's binary collation."""
        parameters = super().db_parameters(connection)  # type: ignore[misc]
        parameters["collation"] = vendor_of(connection).binary_collation(connection)
        return parameters

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        """Text as the vendor's text_parameter()."""
        found = super().get_db_prep_value(value, connection, prepared)  # type: ignore[misc]
        return vendor_of(connection).text_parameter(connection, found) if isinstance(found, str) else found


class NameField(_TextField, models.CharField):
    """VARCHAR that compares byte for byte: no case folding, no accent folding, no padding."""


class ErrorField(_TextField, models.TextField):
    """TEXT on MySQL (64 KB, in utf8mb4 even where the database's own character set is smaller)."""

    def db_type(self, connection: BaseDatabaseWrapper) -> Any:
        """The column type."""
        return vendor_of(connection).column_types.get("text") or super().db_type(connection)


class _BytesField(_Placed, models.BinaryField):
    kind = ""

    def db_type(self, connection: BaseDatabaseWrapper) -> Any:
        """The column type, or Django's own."""
        return vendor_of(connection).column_types.get(self.kind) or super().db_type(connection)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> bytes | None:
        """bytes on every database."""
        return None if value is None else bytes(value)

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        """Readable in the text of a statement: see binary.py."""
        return None if value is None else vendor_of(connection).binary_parameter(connection, value)


if TYPE_CHECKING:
    _Mixin = lookups.Lookup[Any]
else:
    _Mixin = object


class _PlacedLookup(_Mixin):
    """A lookup whose values stand at binary.place(); Django's own know %s only."""

    def get_db_prep_lookup(self, value: Any, connection: Any) -> Any:
        sql, params = super().get_db_prep_lookup(value, connection)
        return (place(params[0]) if len(params) == 1 else sql), params

    def resolve_expression_parameter(self, compiler: Any, connection: Any, sql: str, param: Any) -> Any:
        found: Any = super().resolve_expression_parameter(compiler, connection, place(param), param)  # type: ignore[misc]
        return found


def _placed(lookup: type[lookups.Lookup[Any]]) -> type[lookups.Lookup[Any]]:
    return type(lookup.__name__, (_PlacedLookup, lookup), {})


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
        _field.register_lookup(_placed(_lookup))


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
    """Of each thread."""

    chars = 0


_longest = _Longest()


def longest_payload() -> int:
    """How many characters the longest payload has that this thread has read since it asked last."""
    found, _longest.chars = _longest.chars, 0
    return found


class PayloadField(models.JSONField):
    """JSON that another program may have written: what cannot be decoded comes back as the PayloadError itself.

    A claim must not fail because one row in its batch is beyond Python; the job alone fails, with cause FORMAT.
    """

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """The decoded value, or a PayloadError object."""
        if value is None:
            return None
        if not isinstance(value, (str, bytes)):
            return value
        _longest.chars = max(_longest.chars, len(value))
        try:
            return decode(value)
        except PayloadError as error:
            return error

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Encoded text goes to the driver without a second encoding."""
        if isinstance(value, Encoded):
            return vendor_of(connection).json_parameter(connection, value)
        return super().get_db_prep_value(value, connection, prepared)


def _parsed(text: str) -> datetime:
    """What plain SQL may have written that is no instant (0000-00-00 on MySQL) is one long ago.

    A claim must be able to read every row it meets: one that it cannot read would end every worker.
    """
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    return LONG_AGO if found is None else found


class UtcDateTimeField(models.DateTimeField):
    """An instant, stored in UTC whatever USE_TZ, TIME_ZONE and the database's own zone say; aware in Python."""

    def get_internal_type(self) -> str:
        """Not DateTimeField: Django's converters would apply the zones of the settings."""
        return "UtcDateTimeField"

    def db_type(self, connection: BaseDatabaseWrapper) -> Any:
        """DATETIME(6) on MySQL, TIMESTAMP WITH TIME ZONE on PostgreSQL."""
        return vendor_of(connection).column_types.get("instant", "datetime")

    def db_check(self, connection: BaseDatabaseWrapper) -> None:
        """No check of its own."""
        return None

    def get_prep_value(self, value: Any) -> Any:
        """Aware, in UTC. A naive value is refused by names.check_instant long before it comes here."""
        value = self.to_python(value)
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return value

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        """Naive UTC text with six digits where the database has no zones, the aware value on PostgreSQL."""
        if not prepared:
            value = self.get_prep_value(value)
        if isinstance(value, datetime) and vendor_of(connection).stores_utc_naive:
            return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return value

    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        """In the outermost SELECT bounded to what Python can hold, where the database has infinity and years BC."""
        template = vendor_of(compiler.connection).bounded_instant_sql
        if template is None or compiler.query.subquery:
            return sql, params
        return template % {"instant": sql}, tuple(params) * template.count("%(instant)s")

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> datetime | None:
        """Aware UTC."""
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
