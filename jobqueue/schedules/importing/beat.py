"""Reads the tables of django-celery-beat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from jobqueue.db.clock import read_now
from jobqueue.schedules.importing.rows import Row, Unmapped, every, instant_of, once, read_table

_SECONDS = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0, "microseconds": 1e-6}
#: options of a message that a schedule of ours does not have
_LOST = ("queue", "exchange", "routing_key", "priority", "expire_seconds")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
#: column of a crontab: the least and the greatest number, and names
_FIELDS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "minute": (0, 59, ()),
    "hour": (0, 23, ()),
    "day_of_month": (1, 31, ()),
    "month_of_year": (1, 12, _MONTHS),
    "day_of_week": (0, 6, _DAYS),
}
Tables = Mapping[str, Mapping[int, Mapping[str, Any]]]


def read(using: str) -> list[Row]:
    """All periodic tasks. Raises InvalidValue if their table does not exist."""
    found = read_table("django_celery_beat_periodictask", using)
    now = read_now(using)
    tables = {
        kind: {one["id"]: one for one in read_table(f"django_celery_beat_{kind}schedule", using, needed=False)}
        for kind in ("crontab", "interval", "clocked")
    }
    return [_row(one, tables, now, using) for one in found]


def _row(one: Mapping[str, Any], tables: Tables, now: datetime, using: str) -> Row:
    name, task = str(one["name"]), str(one["task"])
    try:
        args, kwargs = _json(one["args"] or "[]", list), _json(one["kwargs"] or "{}", dict)
        terms = _terms(one, tables, now, using)
        start_at, expires = instant_of(one.get("start_time"), using), instant_of(one["expires"], using)
        if expires is not None and expires <= now:
            raise Unmapped(f"it expired at {expires:%Y-%m-%d %H:%M} UTC")
        if one.get("one_off") and one["total_run_count"]:
            raise Unmapped("it was to run once, and has run")
    except Unmapped as error:
        return Row(name, task, refused=str(error))
    # beat fires no tick at the instant of the expiry itself.
    bounds = {"start_at": start_at, "end_at": expires and expires - timedelta(microseconds=1)}
    return Row(
        name,
        task,
        args,
        kwargs,
        {**{key: value for key, value in bounds.items() if value is not None}, **terms},
        runs=1 if one.get("one_off") and one.get("clocked_id") is None else None,
        disabled="" if one["enabled"] else "was disabled in django-celery-beat",
        lost=(
            *(key for key in _LOST if one.get(key) not in (None, "")),
            *(() if one.get("headers") in (None, "", "{}") else ("headers",)),
        ),
    )


def _json(text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise Unmapped(f"its arguments {text[:60]!r} are no JSON {'array' if kind is list else 'object'}")
    return value


def _terms(one: Mapping[str, Any], tables: Tables, now: datetime, using: str) -> dict[str, Any]:
    # Columns that older versions do not have are got with a default.
    if one.get("solar_id") is not None:
        raise Unmapped("it follows the sun, which no schedule of jobqueue does")
    for kind in ("crontab", "interval", "clocked"):
        number = one.get(f"{kind}_id")
        if number is None:
            continue
        if number not in tables[kind]:
            raise Unmapped(f"its {kind} {number} does not exist")
        row = tables[kind][number]
        if kind == "crontab":
            return {"cron": cron_of(row), "timezone": str(row["timezone"])}
        if kind == "clocked":
            instant = instant_of(row["clocked_time"], using)
            assert instant is not None
            return once(instant, now)
        return _interval(one, row, using)
    raise Unmapped("it has neither a crontab nor an interval nor a clocked time")


def _interval(one: Mapping[str, Any], row: Mapping[str, Any], using: str) -> dict[str, Any]:
    # beat counts from the last run; before the first one from the start, or from the last change.
    last, start = instant_of(one["last_run_at"], using), instant_of(one.get("start_time"), using)
    instant = last or start or instant_of(one["date_changed"], using)
    if instant is None or row["period"] not in _SECONDS:
        raise Unmapped(f"its interval of {row['every']} {row['period']} cannot be read")
    seconds = row["every"] * _SECONDS[row["period"]]
    if last is not None and start is not None and last + timedelta(seconds=seconds) < start:
        # It was stopped and given a new start: it is due then, and counts from there.
        instant = start
    return every(seconds, instant)


def cron_of(row: Mapping[str, Any]) -> str:
    """The cron expression of a crontab. Raises Unmapped for one that celery reads and cron cannot say."""
    fields = {name: _field(name, str(row[name])) for name in _FIELDS}
    if fields["day_of_month"] != "*" and fields["day_of_week"] != "*":
        raise Unmapped(
            "it names days of the month and days of the week: celery runs it where both agree, and cron where one does"
        )
    return " ".join(fields.values())


def _field(name: str, text: str) -> str:
    least, most, _ = _FIELDS[name]
    words = text.replace(" ", "").lower()
    numbers: set[int] = set()
    for part in words.split(","):
        numbers |= _numbers(part, name)
    if len(numbers) == most - least + 1:
        return "*"
    # A star stays: the rule of the nights in which clocks change asks for it.
    return words if words.startswith("*/") and "," not in words else ",".join(map(str, sorted(numbers)))


def _numbers(part: str, name: str) -> set[int]:
    least, most, _ = _FIELDS[name]
    base, slash, step = part.partition("/")
    try:
        first, dash, last = (str(least), "-", str(most)) if base == "*" else base.partition("-")
        low, high, by = _number(first, name), _number(last if dash else first, name), int(step) if slash else 1
    except ValueError:
        raise Unmapped(f"its {name} {part[:40]!r} cannot be read") from None
    # celery takes steps of a star or a range only.
    if by < 1 or (slash and base != "*" and "-" not in base) or not (least <= low <= most and least <= high <= most):
        raise Unmapped(f"its {name} {part[:40]!r} is out of range")
    # celery counts a range that ends before it begins over the end, as fri-mon.
    length = most - least + 1
    row = [least + (low - least + n) % length for n in range((high - low) % length + 1)]
    return {*row[::by]}


def _number(text: str, name: str) -> int:
    least, _, names = _FIELDS[name]
    if text[:3] in names:
        return least + names.index(text[:3])
    return 0 if name == "day_of_week" and text == "7" else int(text)
