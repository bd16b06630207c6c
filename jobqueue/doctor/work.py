"""What workers do: connections, queues, leases, limits, retries, schedules, events without a route, and alarms."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobqueue.alarms import RUNBOOKS, Alarm, firing
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
from jobqueue.outbox.routes import IDS_MAX, Routes, Unrouted
from jobqueue.schedules.declaring import declare_settings, declared
from jobqueue.schedules.listing import due_since, is_late
from jobqueue.schedules.versions import LAPSE_SECONDS
from jobqueue.tasks import registry
from jobqueue.transitions.claiming.candidates import waiting_names
from jobqueue.worker.shared.queue_choice import stored_selection
from jobqueue.worker.shared.worker_options import MONITOR_CONNECTIONS, PER_CHILD, PER_RELAY

#: how much of the server's limit of connections may be in use
USED_SHARE = 0.9
#: workers reap about once a second; a pass may take a few
GRACE_SECONDS = 10.0
COUNT_MAX = 1000


@dataclass(frozen=True, slots=True)
class Budget:
    """The most connections that the workers that run may open to the queue's database."""

    commands: int
    processes: int
    threads: int

    @property
    def connections(self) -> int:
        """The number of connections, computed as docs/howto/sizing.md says."""
        outbox = load().outbox
        per_child = PER_CHILD + (PER_RELAY if outbox is not None and outbox.in_workers else 0)
        return MONITOR_CONNECTIONS * self.commands + per_child * self.processes + self.threads


def budget(using: str) -> Budget:
    """The connections of the running workers, computed from their rows."""
    rows = alive(load().worker_silent_seconds, using=using)
    threads: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    columns = ("host", "supervisor_pid", "boot_id", "concurrency")
    for host, pid, boot_id, concurrency in rows.values_list(*columns)[:WORKERS_MAX]:
        threads[host, pid, boot_id].append(concurrency)
    return Budget(len(threads), sum(map(len, threads.values())), sum(map(sum, threads.values())))


@check(
    "connections",
    "the server has room for the connections of all workers",
    Need.TABLES,
    connections_short=Level.WARNING,
    connections_used=Level.WARNING,
)
def connection_budget(using: str) -> Iterator[Finding]:
    """Compares what the server allows with what the workers may open, and with what is open."""
    use = vendor(using).session_use(connections[using])
    if use is None:
        return
    workers = budget(using)
    age = connections[using].settings_dict["CONN_MAX_AGE"]
    evidence = {"limit": use.limit, "used": use.used, "workers_may_open": workers.connections, "conn_max_age": age}
    evidence |= {"commands": workers.commands, "processes": workers.processes, "threads": workers.threads}
    if workers.connections > use.limit:
        kept = "" if age == 0 else f" With CONN_MAX_AGE {age}, idle threads keep theirs."
        yield report(
            "connections_short",
            f"The workers that run may open {workers.connections} connections, and the server allows this account "
            f"{use.limit}: under load some are refused, web processes too.{kept}",
            "Run fewer worker processes, lower --concurrency, raise max_connections, or use a pooler; "
            "docs/howto/sizing.md#connections has the sum.",
            evidence,
        )
    if use.used >= USED_SHARE * use.limit:
        yield report(
            "connections_used",
            f"{use.used} of the {use.limit} connections that the server allows are open now.",
            "Find out who holds them (SHOW PROCESSLIST, pg_stat_activity), lower CONN_MAX_AGE, or raise "
            "max_connections.",
            evidence,
        )


@check(
    "workers",
    "workers run, and send heartbeats",
    Need.TABLES,
    of_writers=True,
    no_worker=Level.WARNING,
    worker_silent=Level.WARNING,
)
def workers(using: str) -> Iterator[Finding]:
    """Check that workers run and none is silent. Without a worker it is an error if jobs wait."""
    seconds = load().worker_silent_seconds
    running = {*alive(seconds, using=using).values_list("name", flat=True)[:WORKERS_MAX]}
    rows = Worker.objects.using(using).filter(stopped_at__isnull=True).order_by("heartbeat_at")
    silent = [row for row in rows.values_list("name", "host", "heartbeat_at")[:WORKERS_MAX] if row[0] not in running]
    if not running:
        waiting = sorted(waiting_names(using=using))
        waits = f" Jobs wait in {listed(waiting, SHOWN)}." if waiting else ""
        yield report(
            "no_worker",
            f"No worker is running, so no job starts.{waits}",
            "Start one: python manage.py runworker",
            {"queues": list(waiting[:SHOWN]), "silent": len(silent)},
            level=Level.ERROR if waiting else None,
        )
    if silent:
        yield _silent(silent, read_now(using))


def _silent(silent: list[tuple[str, str, datetime]], now: datetime) -> Finding:
    name, host, seen_at = silent[0]
    others = f", and {len(silent) - 1} others for less" if len(silent) > 1 else ""
    return report(
        "worker_silent",
        f"Worker {name} on {host} has sent no heartbeat for {(now - seen_at).total_seconds():.0f} s, and has not "
        f"stopped{others}: it was killed, hangs, or has lost the database.",
        "Look at their hosts and logs. Other workers end their leases; reap_leases marks their rows. See "
        "docs/runbook/leases-run-out.md.",
        {"workers": [{"name": one[0], "host": one[1], "heartbeat_at": one[2].isoformat()} for one in silent[:SHOWN]]},
    )


@check("versions", "all workers run one version", Need.TABLES, worker_versions=Level.WARNING)
def worker_versions(using: str) -> Iterator[Finding]:
    """Compare the versions in the rows of the workers that run."""
    rows = alive(load().worker_silent_seconds, using=using).values_list("version", flat=True)
    if len(found := Counter(rows[:WORKERS_MAX])) > 1:
        text = ", ".join(f"{version} ({number})" for version, number in sorted(found.items()))
        yield report(
            "worker_versions",
            f"The workers run several versions of jobqueue: {text}. Limits and options that the older one does not "
            "know bind only some of them.",
            "If no deploy is under way, restart the workers that have the old one.",
            {"versions": dict(found)},
        )


@check("served", "all queues with jobs are served", Need.TABLES, queue_unserved=Level.ERROR)
def unserved_queues(using: str) -> Iterator[Finding]:
    """Finds nothing where no worker runs: that is another finding."""
    rows = alive(load().worker_silent_seconds, using=using).values_list("queues", flat=True)
    choices = [stored_selection(queues) for queues in {*rows[:WORKERS_MAX]}]
    if not choices:
        return
    names = [name for name in waiting_names(using=using) if not any(choice.serves(name) for choice in choices)]
    if names := sorted(names):
        yield report(
            "queue_unserved",
            f"Jobs wait in queues that no worker serves: {listed(names, SHOWN)}.",
            f"Start a worker for them: python manage.py runworker --queues={','.join(names[:SHOWN])}",
            {"queues": list(names[:SHOWN]), "number": len(names)},
        )


@check("leases", "no lease has lapsed", Need.TABLES, of_writers=True, leases_lapsed=Level.ERROR)
def lapsed_leases(using: str) -> Iterator[Finding]:
    """Expired leases that nobody has reaped."""
    lapsed = Job.objects.using(using).filter(status=Job.Status.PROCESSING, lock_until__lt=UtcNowPlus(-GRACE_SECONDS))
    rows = vendor(using).force_index(lapsed.order_by("lock_until"), "ix_lease")
    ids = list(rows.values_list("pk", flat=True)[: COUNT_MAX + 1])
    if ids:
        number = f"more than {COUNT_MAX}" if len(ids) > COUNT_MAX else str(len(ids))
        yield report(
            "leases_lapsed",
            f"Nobody has ended the leases that lapsed more than {GRACE_SECONDS:.0f} s ago: {number}, such as that of "
            f"job {ids[0]}. Until somebody does, their jobs count as running and do not run again.",
            "Run: python manage.py reap_leases. Then start a worker without --no-reaper, or run reap_leases by cron. "
            "See docs/runbook/leases-run-out.md.",
            {"jobs": list(ids[:SHOWN]), "number": min(len(ids), COUNT_MAX), "capped": len(ids) > COUNT_MAX},
        )


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
                f"Programs other than workers hold jobs of queue {queue}, which is limited or paused: "
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
    """Check the calls that workers have counted. W031 names the libraries that can be seen in the code."""
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
        ago = "yet" if age is None else f"for {age:.0f} s"
        yield report(
            "alarms_stale",
            f"The thresholds of ALARMS have not been checked {ago}, so alarms neither begin nor end.",
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
