"""Reads the table of django-q2."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from typing import Any

from django.conf import settings

from jobqueue.db.clock import read_now
from jobqueue.schedules.importing.rows import Row, Unmapped, every, instant_of, once, read_table
from jobqueue.schedules.timing import zone_of

#: types whose ticks keep the real time between them, and those that keep the local time of day, in days
_HOUR, _DAYS = 3600.0, {"D": 1, "W": 7, "BW": 14}
#: types whose ticks keep the day of the month, in months
_MONTHS = {"M": 1, "BM": 2, "Q": 3}
#: columns that a schedule of ours does not have
_LOST = ("hook", "cluster", "intended_date_kwarg")
#: later, months are too short, and django-q2 moves the day for good
_LAST_DAY = 28


def read(using: str) -> list[Row]:
    """All schedules. Raises InvalidValue if their table does not exist."""
    found = read_table("django_q_schedule", using)
    now = read_now(using)
    names = [one["name"] or "" for one in found]
    return [_row(one, names, now, using) for one in found]


def _row(one: Mapping[str, Any], names: list[str], now: datetime, using: str) -> Row:
    # Names need not be given there, and need not be unique.
    name = one["name"] or "django-q2"
    name = name if names.count(one["name"] or "") == 1 and one["name"] else f"{name} #{one['id']}"
    task, repeats = str(one["func"]), one["repeats"]
    try:
        args, kwargs = _args(one["args"]), _kwargs(one["kwargs"])
        next_run = instant_of(one["next_run"], using)
        if next_run is None:
            raise Unmapped("it has no next run")
        if one["schedule_type"] == "O" and repeats == 0:
            raise Unmapped("it was to run once, and has run")
        terms, lost = _terms(one, next_run, now)
    except Unmapped as error:
        return Row(name, task, refused=str(error))
    options = ("q_options",) if kwargs.pop("q_options", None) else ()
    return Row(
        name,
        task,
        args,
        kwargs,
        terms,
        runs=repeats if repeats > 0 and one["schedule_type"] != "O" else None,
        disabled="" if repeats else "has run in django-q2 as often as it was to",
        lost=tuple(key for key in _LOST if one.get(key)) + options + lost,
    )


def _args(text: str | None) -> list[Any]:
    if not text:
        return []
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, TypeError, ValueError):
        raise Unmapped(f"its arguments {text[:60]!r} cannot be read") from None
    return list(value) if isinstance(value, tuple) else [value]


def _kwargs(text: str | None) -> dict[str, Any]:
    """The keyword arguments, which are written as a dict or as in a call."""
    if not text:
        return {}
    try:
        try:
            value = ast.literal_eval(text)
        except (SyntaxError, TypeError, ValueError):
            call = ast.parse(f"f({text})", mode="eval").body
            value = _keywords(call)
    except (SyntaxError, TypeError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise Unmapped(f"its keyword arguments {text[:60]!r} cannot be read")
    return value


def _keywords(call: ast.expr) -> dict[str, Any]:
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("no keyword arguments")
    return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}


def _terms(one: Mapping[str, Any], next_run: datetime, now: datetime) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The terms of a schedule, and what they leave behind."""
    kind = one["schedule_type"]
    if kind == "O":
        return once(next_run, now), ()
    begin = {"start_at": next_run} if next_run > now else {}
    if kind == "C":
        return {"cron": _same(str(one["cron"])), "timezone": settings.TIME_ZONE or "UTC"} | begin, ()
    if kind in ("I", "H"):
        return every((one["minutes"] or 1) * 60.0 if kind == "I" else _HOUR, next_run) | begin, ()
    zone = zone_of("UTC" if kind == "Y" else settings.TIME_ZONE or "UTC")
    seconds = next_run.second + next_run.microsecond / 1e6
    if kind == "BW" or (kind in _DAYS and seconds and _is_fixed(zone, next_run)):
        # cron cannot say each second week.
        lost = () if _is_fixed(zone, next_run) else ("the time of day when the clocks change",)
        return every(_DAYS[kind] * 24 * _HOUR, next_run) | begin, lost
    # cron has no seconds.
    terms = {"cron": _cron(kind, next_run, zone), "timezone": "UTC" if kind == "Y" else settings.TIME_ZONE or "UTC"}
    if begin:
        begin = {"start_at": next_run.replace(second=0, microsecond=0)}
    return terms | begin, (f"{seconds:g} seconds after the minute",) if seconds else ()


def _same(cron: str) -> str:
    """`cron` if cronsim reads its days as croniter does, which runs it where either agrees, unless one is a star."""
    days = cron.split()[2:5:2]
    if "*" not in days and any(day.startswith("*") for day in days):
        raise Unmapped(
            f"its expression {cron[:60]!r} names days of the month and days of the week, one of them as a step of all: "
            "django-q2 runs it where one agrees, and a schedule where both do"
        )
    return cron


def _cron(kind: str, next_run: datetime, zone: tzinfo) -> str:
    local = next_run.astimezone(zone)
    time = f"{local.minute} {local.hour}"
    if kind == "D":
        return f"{time} * * *"
    if kind == "W":
        return f"{time} * * {local.isoweekday() % 7}"
    if kind not in _MONTHS and kind != "Y":
        raise Unmapped(f"its type {kind!r} is not known")
    if kind == "Y" and (local.month, local.day) != (2, 29):
        return f"{time} {local.day} {local.month} *"
    # django-q2 adds months to the day in UTC.
    if max(local.day, next_run.day) > _LAST_DAY or local.month != next_run.month:
        raise Unmapped(f"its day of the month, {local.day}, moves in short months, and cron does not move it")
    step = _MONTHS[kind]
    months = sorted((local.month - 1 + step * n) % 12 + 1 for n in range(12 // step))
    return f"{time} {local.day} {'*' if step == 1 else ','.join(map(str, months))} *"


def _is_fixed(zone: tzinfo, since: datetime) -> bool:
    """Whether the clocks of a zone do not change within a year."""
    return len({(since + timedelta(days=10 * n)).astimezone(zone).utcoffset() for n in range(37)}) == 1
