"""Schedules that do not fire, fire late, have missed ticks, or enqueue a task that nobody knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.doctor.finding import Finding, Level
from jobqueue.models import Schedule, ScheduleTick
from jobqueue.schedules.declaring import declared
from jobqueue.schedules.from_settings import declare_settings
from jobqueue.schedules.listing import due_since, is_late
from jobqueue.schedules.versions import LAPSE_SECONDS
from jobqueue.tasks import registry

#: ticks of this time are looked at, and schedules and ticks that are read
MISSED_SECONDS, SCHEDULES_MAX, TICKS_MAX = 86_400.0, 100_000, 100_000
SHOWN = 10
_COLUMNS = ("name", "source", "task", "enabled", "announced_at", "retired_at", "next_at", "look_at")


def schedules(using: str) -> Iterator[Finding]:
    """schedule_unknown_task, schedule_unannounced, schedule_late, schedule_missed."""
    declare_settings()
    known = Schedule.objects.using(using).order_by("name").only(*_COLUMNS)
    rows = list(known[:SCHEDULES_MAX])
    active = [row for row in rows if row.enabled and row.retired_at is None]
    yield from _unknown_tasks(active)
    now = read_now(using)
    yield from _unannounced(rows, active, now, using)
    yield from _late(active, now)
    yield from _missed(rows, using)


def _unknown_tasks(active: list[Any]) -> Iterator[Finding]:
    if unknown := {row.name: row.task for row in active if registry.find_task(row.task) is None}:
        shown = _listed([f"{name} ({task})" for name, task in unknown.items()])
        yield Finding(
            Level.ERROR,
            "schedule_unknown_task",
            f"Schedules enqueue tasks that the code of this host does not have: {shown}. Workers with the same code "
            "park such jobs.",
            "Deploy the code that has them, correct the schedules in the admin, or disable them: "
            "python manage.py jobs schedules disable NAME --reason TEXT",
            {"schedules": dict([*unknown.items()][:SHOWN]), "number": len(unknown)},
        )


def _unannounced(rows: list[Any], active: list[Any], now: datetime, using: str) -> Iterator[Finding]:
    oldest = now - timedelta(seconds=LAPSE_SECONDS)
    names = {row.name for row in active if row.source != Schedule.Source.ADMIN and row.announced_at < oldest}
    met = {row.name for row in rows}
    here = [one for one in declared().values() if getattr(one.task.get_backend(), "database", None) == using]
    if len(rows) < SCHEDULES_MAX:
        names |= {one.name for one in here if one.name not in met}
    if names:
        yield Finding(
            Level.WARNING,
            "schedule_unannounced",
            f"No worker that runs announces these schedules of the code or the settings: {_names(names)}. Ten minutes "
            "after the last announcement a schedule does not fire any more.",
            "Start a worker with the code that declares them. Those that were removed on purpose need nothing: workers "
            "retire them.",
            {"schedules": sorted(names)[:SHOWN], "number": len(names)},
        )


def _late(active: list[Any], now: datetime) -> Iterator[Finding]:
    if late := {row.name: due_since(row.next_at, row.look_at) or now for row in active if is_late(row, now)}:
        first = min(late.values())
        yield Finding(
            Level.ERROR,
            "schedule_late",
            f"Schedules are due and were not fired: {_names(late)}; the first one has been due for "
            f"{(now - first).total_seconds():.0f} s. No worker fires schedules, or a tick of them fails.",
            "Start a worker without --no-scheduler, and look for 'schedule' in the logs of those that run.",
            {"schedules": {name: late[name].isoformat() for name in sorted(late)[:SHOWN]}, "number": len(late)},
        )


def _missed(rows: list[Any], using: str) -> Iterator[Finding]:
    ticks: QuerySet[Any] = ScheduleTick.objects.using(using).filter(created_at__gte=UtcNowPlus(-MISSED_SECONDS))
    newest = vendor(using).force_index(ticks.order_by("-created_at"), "ix_schedule_tick_age")
    missed: Counter[int] = Counter()
    read = list(newest.values_list("schedule_id", "outcome", "ticks")[:TICKS_MAX])
    for number, outcome, count in read:
        if outcome == ScheduleTick.Outcome.MISSED:
            missed[number] += count
    names = {row.name: missed[row.pk] for row in rows if missed[row.pk]}
    if names:
        which = (
            f"the last day, of which the newest {TICKS_MAX} were read," if len(read) == TICKS_MAX else "the last day"
        )
        shown = _listed([f"{name} ({names[name]})" for name in sorted(names)])
        yield Finding(
            Level.WARNING,
            "schedule_missed",
            f"Ticks of {which} were missed, because no worker was there in time: {shown}.",
            "Keep a worker running. @schedule(missed=...) decides what follows a missed tick; see "
            "docs/howto/schedules.md.",
            {"schedules": {name: names[name] for name in sorted(names)[:SHOWN]}, "number": len(names)},
        )


def _names(names: Any) -> str:
    return _listed(sorted(names))


def _listed(words: list[str]) -> str:
    more = f" and {len(words) - SHOWN} others" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more
