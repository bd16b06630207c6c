"""What the work itself shows: limits that do not bind, nested retries, schedules, events without a route, alarms."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from jobqueue.alarms import firing
from jobqueue.alarms.alarm import RUNBOOKS, Alarm
from jobqueue.alarms.looking import is_stale, last_look_seconds
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.db.expressions import Unestimated
from jobqueue.doctor.finding import SHOWN, Finding, Level, Need, check, listed, report, report_first
from jobqueue.explain.workers import WORKERS_MAX
from jobqueue.flow.overview import known_names
from jobqueue.gates.limits import limits_at
from jobqueue.gates.rules import rules
from jobqueue.maintenance.worker_rows import alive
from jobqueue.models import Job, Schedule, ScheduleTick, Worker
from jobqueue.outbox.routes import Routes
from jobqueue.outbox.unrouted import IDS_MAX, Unrouted
from jobqueue.schedules.declaring import declare_settings, declared
from jobqueue.schedules.listing import due_since, is_late
from jobqueue.schedules.versions import LAPSE_SECONDS
from jobqueue.tasks import registry

#: limited queues that are looked at, leases of each (for more, PostgreSQL may read and sort all jobs), and workers
#: whose names are known
QUEUES_MAX, LEASES_MAX, NAMES_MAX = 1000, 1000, 100_000
#: calls in one attempt of a task, on average, and the attempts without which the figure says nothing
CALLS_MAX, RUNS_MIN = 2.0, 20
#: ticks of this time are looked at, and schedules and ticks that are read
MISSED_SECONDS, SCHEDULES_MAX, TICKS_MAX = 86_400.0, 100_000, 100_000
#: alarms that become findings of their own
ALARMS_SHOWN = 20
_COLUMNS = ("name", "source", "task", "enabled", "announced_at", "retired_at", "next_at", "look_at")


@check("claimers", "all claimers know the limits of their queues", Need.TABLES, foreign_claimer=Level.WARNING)
def foreign_claimers(using: str) -> Iterator[Finding]:
    """Programs that claim jobs of a limited queue and are no workers of ours: the limit does not bind them.

    An index seek for each limited queue, and up to LEASES_MAX rows.
    """
    known = rules(using)
    limited = [name for name in known_names(using=using) if not limits_at(name, known).none]
    limited += sorted({queue for queue, _ in known.paused} - {*limited})
    for queue in limited[:QUEUES_MAX]:
        if found := _foreign(queue, using):
            names = sorted(found)
            yield report(
                "foreign_claimer",
                f"Programs that are no workers hold jobs of queue {queue}, which is limited or paused: "
                f"{listed(names, SHOWN)}. Limits bind workers only, so more jobs of it may run than the limit allows.",
                "Let these programs look at job_flow before they claim, as docs/howto/plain-sql.md shows, or give them "
                "a queue of their own.",
                {"queue": queue, "claimers": {name: list(found[name][:SHOWN]) for name in names[:SHOWN]}},
            )
    if len(limited) > QUEUES_MAX:
        yield report(
            "not_checked",
            f"Of {len(limited)} queues that are limited or paused, only the first {QUEUES_MAX} by name were looked at.",
            "Nothing is needed if only workers claim from the others.",
            {"check": "claimers", "queues": len(limited), "looked_at": QUEUES_MAX},
        )


def _foreign(queue: str, using: str) -> dict[str, list[int]]:
    """The ids of the leases of each claimer that is no worker."""
    held: dict[str, list[int]] = {}
    rows = Job.objects.using(using).filter(queue=Unestimated(queue), status=Unestimated(Job.Status.PROCESSING))
    # In the order of the index, or PostgreSQL may read the whole table.
    rows = vendor(using).force_index(rows.order_by("gate", "priority", "run_at", "id"), "ix_pick")
    for job_id, name in rows.values_list("pk", "locked_by")[:LEASES_MAX]:
        held.setdefault(str(name), []).append(job_id)
    if not held:
        return held
    known = Worker.objects.using(using)
    running = known.filter(stopped_at__isnull=True).values_list("name", flat=True)[:NAMES_MAX]
    ours = {*known.filter(name__in=[*held]).values_list("name", flat=True), *running}
    # The process of a job that runs alone has no row of its own.
    commands = {name.rpartition("/")[0] for name in ours if "/" in name}
    return {
        name: ids
        for name, ids in held.items()
        if name not in ours and name.rpartition("/")[0] not in commands and not name.endswith(":alone")
    }


@check("retries", "retries do not multiply", Need.TABLES, retries_multiply=Level.WARNING)
def nested_retries(using: str) -> Iterator[Finding]:
    """By what the workers have counted. W031 names the libraries that can be seen in the code."""
    rows = alive(load().worker_silent_seconds, using=using).filter(retries__isnull=False)
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for counts in rows.values_list("retries", flat=True)[:WORKERS_MAX]:
        for one in counts if isinstance(counts, list) else []:
            _add(sums, one)
    many = [
        (task, runs, calls)
        for task, (runs, calls) in sorted(sums.items())
        if runs >= RUNS_MIN and calls > CALLS_MAX * runs
    ]
    yield from report_first(
        many,
        SHOWN,
        lambda one: report(
            "retries_multiply",
            f"An attempt of task {one[0]} makes {one[2] / one[1]:.1f} calls on average. If a library repeats calls "
            "inside an attempt, each attempt of the task multiplies them.",
            "Let one layer retry: switch the retries of the library off, or set max_attempts=1. See "
            "docs/explanation/retries.md.",
            {"task": one[0], "attempts": one[1], "calls": one[2]},
        ),
        lambda rest: report(
            "retries_multiply",
            f"Attempts of {len(rest)} more tasks make more than {CALLS_MAX:g} calls on average: {rest[0][0]} and so "
            "on.",
            "Look at these first; run jobs doctor again when they are mended.",
            {"more": len(rest)},
        ),
    )


def _add(sums: dict[str, list[int]], one: Any) -> None:
    """A version of the code may write other keys."""
    if isinstance(one, dict) and isinstance(one.get("task"), str):
        for key, place in (("first_runs", 0), ("retries", 0), ("calls", 1)):
            if isinstance(one.get(key), int):
                sums[one["task"]][place] += one[key]


@check(
    "schedules",
    "schedules fire on time",
    Need.TABLES,
    schedule_unknown_task=Level.ERROR,
    schedule_unannounced=Level.WARNING,
    schedule_late=Level.ERROR,
    schedule_missed=Level.WARNING,
)
def schedules(using: str) -> Iterator[Finding]:
    """Schedules that do not fire, fire late, have missed ticks, or enqueue a task that nobody knows."""
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
        shown = listed([f"{name} ({task})" for name, task in unknown.items()], SHOWN)
        yield report(
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
        yield report(
            "schedule_unannounced",
            "No worker that runs announces these schedules of the code or the settings: "
            f"{listed(sorted(names), SHOWN)}. Ten minutes after the last announcement a schedule does not fire any "
            "more.",
            "Start a worker with the code that declares them. Those that were removed on purpose need nothing: workers "
            "retire them.",
            {"schedules": sorted(names)[:SHOWN], "number": len(names)},
        )


def _late(active: list[Any], now: datetime) -> Iterator[Finding]:
    if late := {row.name: due_since(row.next_at, row.look_at) or now for row in active if is_late(row, now)}:
        first = min(late.values())
        yield report(
            "schedule_late",
            f"Schedules are due and were not fired: {listed(sorted(late), SHOWN)}; the first one has been due for "
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
        shown = listed([f"{name} ({names[name]})" for name in sorted(names)], SHOWN)
        yield report(
            "schedule_missed",
            f"Ticks of {which} were missed, because no worker was there in time: {shown}.",
            "Keep a worker running. @schedule(missed=...) decides what follows a missed tick; see "
            "docs/howto/schedules.md.",
            {"schedules": {name: names[name] for name in sorted(names)[:SHOWN]}, "number": len(names)},
        )


@check("events", "all events have a route", Need.TABLES, events_unrouted=Level.WARNING)
def unrouted_events(using: str) -> Iterator[Finding]:
    """Events that no route and no subscriber of this host takes: an index seek for each of up to 1,000 keys."""
    return report_first(
        Routes(using, load().outbox_settings.routes).unrouted(),
        SHOWN,
        _unrouted,
        lambda rest: report(
            "events_unrouted",
            f"Events of {len(rest)} more topics have no route and no subscriber on this host.",
            "Look at these first; run jobs doctor again when they are mended.",
            {"more": len(rest)},
        ),
    )


def _unrouted(one: Unrouted) -> Finding:
    ids = sorted(one.ids)[:IDS_MAX]
    return report(
        "events_unrouted",
        f"No route and no subscriber of this host takes events of the topic {one}.",
        f"Add {one.topic!r} to JOBQUEUE['OUTBOX']['ROUTES'], write a subscriber, or give the events up with "
        "the action Skip of the admin. See docs/howto/outbox.md.",
        {"topic": one.topic, "events": list(ids), "number": len(one.ids), "behind": len(one.behind)},
    )


@check(
    "alarms",
    "no alarm fires",
    Need.TABLES,
    of_writers=True,
    alarms_stale=Level.WARNING,
    alarm_fires=Level.WARNING,
)
def firing_alarms(using: str) -> Iterator[Finding]:
    """The alarms that fire: the doctor's exit status tells of them, too."""
    if is_stale(age := last_look_seconds(using=using)):
        ago = "ever" if age is None else f"for {age:.0f} s"
        yield report(
            "alarms_stale",
            f"Nobody has looked at the figures of ALARMS {ago}, so alarms neither begin nor end.",
            "Start a worker without --no-reaper, or run reap_leases by cron.",
            {"last_look_seconds": age},
        )
    yield from report_first(
        firing(using=using),
        ALARMS_SHOWN,
        _fires,
        lambda rest: report(
            "alarm_fires",
            f"More alarms fire: {len(rest)}.",
            "List them: python manage.py jobs alarms",
            {"more": len(rest)},
        ),
    )


def _fires(alarm: Alarm) -> Finding:
    about = f"queue {alarm.queue}: {alarm.name}" if alarm.queue else f"workers: {alarm.name}"
    return report(
        "alarm_fires",
        f"An alarm has fired since {alarm.since:%Y-%m-%d %H:%M:%S} UTC: {about} is {alarm.value:g}, and its "
        f"threshold is {alarm.threshold:g}{f' ({alarm.names})' if alarm.about else ''}.",
        f"See {RUNBOOKS[alarm.name]}.",
        {
            "queue": alarm.queue,
            "name": alarm.name,
            "value": alarm.value,
            "threshold": alarm.threshold,
            "about": list(alarm.about),
            "since": alarm.since.isoformat(),
            "incident": alarm.incident,
        },
    )
