"""Makes schedules of the rows of django-celery-beat or django-q2, which need not be installed."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils.dateparse import parse_datetime

from jobqueue.base.compat import AnyTask
from jobqueue.base.validation import did_you_mean
from jobqueue.db.clock import read_now
from jobqueue.exceptions import DatabaseBusy, InvalidValue, JobQueueError
from jobqueue.models import Schedule
from jobqueue.schedules.declaring import Terms, check_arguments, check_name, check_terms, declared, task_of
from jobqueue.schedules.editing import save
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
                "written; name the database of the other package with --from."
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


_SECONDS = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0, "microseconds": 1e-6}
#: options of a message that a schedule of ours does not have
_LOST_OF_BEAT = ("queue", "exchange", "routing_key", "priority", "expire_seconds")
_DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
#: column of a crontab: the least and the greatest number, and names
_FIELDS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "minute": (0, 59, ()),
    "hour": (0, 23, ()),
    "day_of_month": (1, 31, ()),
    "month_of_year": (1, 12, _MONTH_NAMES),
    "day_of_week": (0, 6, _DAY_NAMES),
}
Tables = Mapping[str, Mapping[int, Mapping[str, Any]]]


def read_beat(using: str) -> list[Row]:
    """All periodic tasks. Raises InvalidValue if their table does not exist."""
    found = read_table("django_celery_beat_periodictask", using)
    now = read_now(using)
    tables = {
        kind: {one["id"]: one for one in read_table(f"django_celery_beat_{kind}schedule", using, needed=False)}
        for kind in ("crontab", "interval", "clocked")
    }
    return [_beat_row(one, tables, now, using) for one in found]


def _beat_row(one: Mapping[str, Any], tables: Tables, now: datetime, using: str) -> Row:
    name, task = str(one["name"]), str(one["task"])
    try:
        args, kwargs = _json(one["args"] or "[]", list), _json(one["kwargs"] or "{}", dict)
        terms = _beat_terms(one, tables, now, using)
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
            *(key for key in _LOST_OF_BEAT if one.get(key) not in (None, "")),
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


def _beat_terms(one: Mapping[str, Any], tables: Tables, now: datetime, using: str) -> dict[str, Any]:
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


#: types whose ticks keep the real time between them, and those that keep the local time of day, in days
_HOUR, _Q_DAYS = 3600.0, {"D": 1, "W": 7, "BW": 14}
#: types whose ticks keep the day of the month, in months
_Q_MONTHS = {"M": 1, "BM": 2, "Q": 3}
#: columns that a schedule of ours does not have
_LOST_OF_Q = ("hook", "timeout_hook", "failure_hook", "cluster", "intended_date_kwarg")
#: later, months are too short, and django-q2 moves the day for good
_LAST_DAY = 28


def read_django_q(using: str) -> list[Row]:
    """All schedules. Raises InvalidValue if their table does not exist."""
    found = read_table("django_q_schedule", using)
    now = read_now(using)
    names = [one["name"] or "" for one in found]
    return [_q_row(one, names, now, using) for one in found]


def _q_row(one: Mapping[str, Any], names: list[str], now: datetime, using: str) -> Row:
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
        terms, lost = _q_terms(one, next_run, now)
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
        lost=tuple(key for key in _LOST_OF_Q if one.get(key)) + options + lost,
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


def _q_terms(one: Mapping[str, Any], next_run: datetime, now: datetime) -> tuple[dict[str, Any], tuple[str, ...]]:
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
    if kind == "BW" or (kind in _Q_DAYS and seconds and _is_fixed(zone, next_run)):
        # cron cannot say each second week.
        lost = () if _is_fixed(zone, next_run) else ("the time of day when the clocks change",)
        return every(_Q_DAYS[kind] * 24 * _HOUR, next_run) | begin, lost
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
    if kind not in _Q_MONTHS and kind != "Y":
        raise Unmapped(f"its type {kind!r} is not known")
    if kind == "Y" and (local.month, local.day) != (2, 29):
        return f"{time} {local.day} {local.month} *"
    # django-q2 adds months to the day in UTC.
    if max(local.day, next_run.day) > _LAST_DAY or local.month != next_run.month:
        raise Unmapped(f"its day of the month, {local.day}, moves in short months, and cron does not move it")
    step = _Q_MONTHS[kind]
    months = sorted((local.month - 1 + step * n) % 12 + 1 for n in range(12 // step))
    return f"{time} {local.day} {'*' if step == 1 else ','.join(map(str, months))} *"


def _is_fixed(zone: tzinfo, since: datetime) -> bool:
    """Return whether the clocks of a zone do not change within a year."""
    return len({(since + timedelta(days=10 * n)).astimezone(zone).utcoffset() for n in range(37)}) == 1


#: what can be imported
SOURCES = {"beat": read_beat, "django-q2": read_django_q}
#: ticks that are counted to find the last one
RUNS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan for one row. `outcome`: "new", "exists" (it is left alone) or "skipped"; then `why`."""

    name: str
    task: str
    outcome: str
    why: str = ""
    words: str = ""
    next_at: datetime | None = None
    disabled: str = ""
    lost: tuple[str, ...] = ()
    row: Row | None = None
    terms: Terms | None = None


def plan(source: str, mapping: Mapping[str, str], *, using: str, tables_in: str | None = None) -> list[Planned]:
    """Plan an import from "beat" or "django-q2"; nothing is written.

    `mapping`: paths of tasks there and here. `tables_in`: the alias of their tables; default `using`. Raises
    InvalidValue if the tables do not exist, or a path of `mapping` is not a task here or is not named there.
    """
    for path in mapping.values():
        task_of(path)
    rows = SOURCES[source](tables_in or using)
    paths = sorted({row.task for row in rows})
    for path in mapping:
        if path not in paths:
            raise InvalidValue(
                f"--map {path[:200]!r} is no task of a schedule of {source}{did_you_mean(path, paths)}. "
                "Nothing was written."
            )
    named = Schedule.objects.using(using).filter(name__in=[row.name for row in rows])
    # Also those of the code that no worker has announced yet.
    taken = {*named.values_list("name", flat=True), *declared()}
    now = read_now(using)
    return [_planned(row, mapping, taken, now) for row in rows]


def carry_out(plans: Sequence[Planned], *, by: str, using: str) -> list[Planned]:
    """Make those that are new, each in its own transaction. One that was made or is refused meanwhile says so."""
    return [_made(one, by, using) if one.outcome == "new" else one for one in plans]


def _planned(row: Row, mapping: Mapping[str, str], taken: set[str], now: datetime) -> Planned:
    skipped = partial(Planned, row.name, row.task, "skipped")
    if row.name in taken:
        return Planned(row.name, row.task, "exists", "a schedule of this name exists, and was left alone")
    if row.refused:
        return skipped(row.refused)
    if row.disabled and row.runs is not None:
        # Its end is reckoned from now, and may have passed when somebody enables it.
        return skipped(
            f"it is disabled and is to run {row.runs} times, which would count from now: enable it there and import it "
            "again, or make it here when it is to run"
        )
    try:
        task = _task(mapping.get(row.task, row.task))
        terms = _terms(row, now)
        check_arguments(check_name(row.name), task, row.args, row.kwargs)
    except JobQueueError as error:
        # The message is about a schedule; for a row only its last sentence is wrong.
        return skipped(str(error).replace(" Nothing was written.", "").partition(" Nothing was written;")[0])
    next_at = None if row.disabled else terms.timing.after(now)
    words = terms.timing.words
    return Planned(
        row.name, task.module_path, "new", "", words, next_at, row.disabled, row.lost, row=row, terms=terms
    )  # fmt: skip


def _task(path: str) -> AnyTask:
    try:
        return task_of(path)
    except InvalidValue:
        raise InvalidValue(f"no task is called {path!r:.200}: declare it, or name another one with --map") from None


def _terms(row: Row, now: datetime) -> Terms:
    terms = check_terms(row.name, **row.terms)
    if row.runs is None:
        return terms
    if row.runs > RUNS_MAX:
        raise InvalidValue(f"it is to run {row.runs} times; at most {RUNS_MAX} are counted. Nothing was written.")
    ticks = terms.timing.first(row.runs, now)
    if not ticks:
        return terms
    last = min(filter(None, (terms.timing.end_at, ticks[-1])))
    return replace(terms, timing=replace(terms.timing, end_at=last))


def _made(one: Planned, by: str, using: str) -> Planned:
    assert one.row is not None
    assert one.terms is not None
    if Schedule.objects.using(using).filter(name=one.name).exists():
        return replace(one, outcome="exists", why="a schedule of this name exists, and was left alone")
    row, reason = one.row, one.disabled
    try:
        save(
            one.name, task_of(one.task), row.args, row.kwargs, one.terms,
            by=by, using=using, enabled=not reason, reason=reason,
        )  # fmt: skip
    except DatabaseBusy:
        raise
    except JobQueueError as error:
        return replace(one, outcome="skipped", why=str(error))
    return one
