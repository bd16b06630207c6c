"""What is read from the tables of another package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils.dateparse import parse_datetime

from jobqueue.exceptions import InvalidValue
from jobqueue.schedules.timing import zone_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_SECONDS = 86_400.0


class Unmapped(Exception):
    """A row that no schedule can stand for; the text says why."""


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule of another package. `terms`: arguments of declaring.check_terms(); `lost`: what is left behind."""

    name: str
    task: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    terms: Mapping[str, Any] = field(default_factory=dict)
    runs: int | None = None  # after so many ticks it ends
    disabled: str = ""  # why; empty: it is enabled
    lost: tuple[str, ...] = ()
    refused: str = ""  # why it cannot be imported


def every(seconds: float, since: datetime) -> dict[str, Any]:
    """The terms of an interval that counts from an instant."""
    phase = (since - _EPOCH) % timedelta(seconds=seconds) if seconds > 0 else timedelta()
    return {"every": seconds, "phase_seconds": phase.total_seconds()}


def once(instant: datetime, now: datetime) -> dict[str, Any]:
    """The terms of a single tick. Raises Unmapped if it is past."""
    if instant <= now:
        raise Unmapped(f"its only tick was at {instant:%Y-%m-%d %H:%M} UTC")
    return every(_DAY_SECONDS, instant) | {"start_at": instant, "end_at": instant}


def read_table(table: str, using: str, *, needed: bool = True) -> list[dict[str, Any]]:
    """All rows of a table, by column. Raises InvalidValue if it is `needed` and does not exist."""
    connection = connections[using]
    with connection.cursor() as cursor:
        if table not in connection.introspection.table_names(cursor):
            if not needed:
                return []
            raise InvalidValue(
                f"there is no table {table} in the database {using!r}, so there is nothing to import. Nothing was "
                "written; name the database of the other package with --database."
            )
        cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
        names = [column[0] for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return sorted(found, key=lambda row: row["id"])


def instant_of(value: object, using: str) -> datetime | None:
    """The instant in a column, in UTC. Drivers give text, or a time without a zone, as Django has stored it."""
    if value is None:
        return None
    found = value if isinstance(value, datetime) else parse_datetime(str(value))
    if found is None:
        raise Unmapped(f"{str(value)[:40]!r} is no instant")
    if found.tzinfo is None:
        # Without USE_TZ Django stores local time.
        found = found.replace(tzinfo=connections[using].timezone or zone_of(settings.TIME_ZONE))
    return found.astimezone(UTC)
