"""The overview as a page: the tiles, alarms, tables and charts that the user may see, from what was read for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.overview import reading
from jobqueue.admin.overview.reading import LATE_MAX, LEASES_MAX, Failing, HeldBack, Late, Silent, Workers, count_max
from jobqueue.admin.page.addresses import address_of, link, list_address, page_address
from jobqueue.admin.page.charts import Range, Series, bars, ended_series, lines, sparkline
from jobqueue.admin.page.formatting import (
    NOTHING,
    StrOrPromise,
    hint,
    marked,
    mode_badge,
    moment,
    number,
    plain,
    relative,
    short_worker,
    span,
    task_cell,
)
from jobqueue.admin.page.limited import TOGETHER_SECONDS
from jobqueue.admin.page.readonly import capped
from jobqueue.admin.page.tables import Column, Table, Tile, table_of
from jobqueue.alarms import Alarm
from jobqueue.conf import load
from jobqueue.conf.alarms import LATE
from jobqueue.db.clock import read_now
from jobqueue.db.time_limit import time_limit
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models.group import PARENTS_GATE
from jobqueue.ordering import KEY_GATE
from jobqueue.stats.ends import Ends
from jobqueue.stats.history import Part, QueueHistory
from jobqueue.stats.live import COUNTS, QueueStats, is_at_least

_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
RANGES = (
    Range("15m", _("15 minutes"), 15 * _MINUTE, _MINUTE, _("jobs in a minute"), reading.KEPT_SECONDS),
    Range("1h", _("1 hour"), 60 * _MINUTE, _MINUTE, _("jobs in a minute"), reading.KEPT_SECONDS),
    Range("24h", _("24 hours"), 24 * _HOUR, _HOUR, _("jobs in an hour"), 15),
    Range("7d", _("7 days"), 168 * _HOUR, 6 * _HOUR, _("jobs in 6 hours"), 15),
)
_PERMISSIONS = (
    "view_job", "view_worker", "view_jobalarm", "view_flowrule", "redrive_jobs", "view_redrive", "view_schedule",
)  # fmt: skip
#: seconds between two refreshes that can be chosen; 0 is off
REFRESHES = (0, 2, 5, 15, 60)


def overview(request: HttpRequest, app_list: object) -> dict[str, Any]:
    """The context of the page. A section whose permission the user lacks, or that takes too long, is not read."""
    using, may = load().database, {name: request.user.has_perm(f"jobqueue.{name}") for name in _PERMISSIONS}
    with time_limit(reading.READ_SECONDS, using=using, together=TOGETHER_SECONDS):
        return _context(request, app_list, using, may)


def _context(request: HttpRequest, app_list: object, using: str, may: dict[str, bool]) -> dict[str, Any]:
    chosen = next((one for one in RANGES if one.key == request.GET.get("range")), RANGES[0])
    context: dict[str, Any] = {
        "request": request,
        "app_list": app_list,
        "ranges": [(one.key, one.word, one is chosen) for one in RANGES],
        "refreshes": REFRESHES,
        "now": read_now(using),
        "slow": [],
    }
    if may["view_job"]:
        context |= _of_jobs(using, chosen, may, context["slow"])
    if may["view_worker"]:
        context["workers"] = reading.kept("workers", using, lambda: reading.workers(using))
        _note(context["slow"], context["workers"], gettext("workers"))
    if may["view_jobalarm"] or may["view_job"]:
        firing = reading.kept("alarms", using, lambda: reading.alarms(using))
        _note(context["slow"], firing, gettext("alarms"))
        context["alarms"] = alarm_lines(firing or [], context["now"])
    crew = context.get("workers")
    if crew is not None and crew.silent:
        context["alarms"] = [*context.get("alarms", ()), *silent_lines(crew.silent, context["now"])]
    if may["view_schedule"]:
        late = reading.kept("late", using, lambda: reading.late(using))
        _note(context["slow"], late, gettext("schedules"))
        context["alarms"] = [*context.get("alarms", ()), *(late_lines(late) if late else ())]
    more = context.get("more_queues", False)
    context["tiles"] = tiles(context.get("stats"), context.get("held_back"), crew, more=more)
    context["is_empty"] = context.get("stats") == [] and crew is not None and not (crew.running or crew.silent)
    return context


def _of_jobs(using: str, chosen: Range, may: dict[str, bool], slow: list[str]) -> dict[str, Any]:
    queues = reading.kept("queues", using, lambda: reading.queues(using))
    stats, more = (None, False) if queues is None else (queues.stats, queues.more)
    modes = reading.kept("modes", using, lambda: reading.modes(using)) or {}
    failing = reading.kept("failing", using, lambda: reading.failing(using))
    names = [one.queue for one in stats or ()]
    held = reading.kept("held-back", using, lambda: reading.held_back(using, names, more=more)) if names else None
    history = reading.kept(
        f"history-{chosen.key}",
        using,
        lambda: reading.history(using, chosen.length, chosen.part),
        chosen.kept_seconds,
    )
    for found, name in ((stats, gettext("queues")), (failing, gettext("failures")), (history, gettext("charts"))):
        _note(slow, found, name)
    parts, of_queues = history or ([], {})
    label = gettext("Jobs that ended over the last %(time)s") % {"time": chosen.word}
    return {
        "stats": stats,
        "more_queues": more,
        "held_back": held,
        "range": chosen.word,
        "queues": queue_table(stats or [], of_queues, modes, may, label),
        "queue_notes": list(queue_notes(len(names), more=more)),
        "failing": failing_table(failing or [], read_now(using), may),
        "charts": _charts(parts, chosen) if parts else [],
    }


def _note(slow: list[str], found: object, name: str) -> None:
    if found is None:
        slow.append(gettext("Reading the %(name)s took too long; they are left out.") % {"name": name})


def _charts(parts: Sequence[Part], chosen: Range) -> list[str]:
    instants = [part.begins_at for part in parts]
    return [
        bars(gettext("Ended"), instants, ended_series(parts), unit=str(chosen.unit)),
        lines(gettext("Wait before the start"), instants, _waits(parts), unit="s", log=True),
    ]


def _waits(parts: Sequence[Part]) -> list[Series]:
    """The median and the 95th percentile; where too many rows would have to be added up, the mean and the longest."""
    if any(part.wait_times is None for part in parts):
        longest = [part.wait_us_max / 1e6 if part.runs else None for part in parts]
        means = [part.mean_wait_seconds for part in parts]
        return [Series(gettext("mean"), "p50", means), Series(gettext("longest"), "p95", longest)]
    return [
        Series(gettext("median"), "p50", [part.wait_seconds(0.5) for part in parts]),
        Series(gettext("95 % at most"), "p95", [part.wait_seconds(0.95) for part in parts]),
    ]


_GATES: Mapping[int, StrOrPromise] = {
    KEY_GATE: _("by keys"),
    FLOW_GATE: _("by limits"),
    PARENTS_GATE: _("by parents"),
}


def tiles(
    stats: Sequence[QueueStats] | None, held: HeldBack | None, workers: Workers | None, *, more: bool = False
) -> list[Tile]:
    """Those of jobs, if they were read, and those of workers. `more`: there are other queues."""
    found = [] if stats is None else _job_tiles(stats, workers, more)
    if held is not None and held.by_gate:
        found.append(_of_held_back(held))
    if workers is not None:
        found.append(_of_workers(workers))
    return found


def _job_tiles(stats: Sequence[QueueStats], workers: Workers | None, more: bool) -> list[Tile]:
    oldest = max((one.oldest_age_seconds for one in stats), default=0.0)
    dead = sum(one.dead_per_hour for one in stats)
    threads = workers.threads if workers else 0
    waits = gettext("oldest %(time)s") % {"time": span(oldest)} if oldest else ""
    of = gettext("of %(n)s threads") % {"n": number(threads)} if threads else ""
    lately, kind = (gettext("%(n)s in the last hour") % {"n": number(dead)}, "bad") if dead else ("", "")
    return [
        Tile(_("Ready"), _sum(stats, "ready", more), waits, list_address("job", state="ready")),
        Tile(_("Scheduled"), _sum(stats, "scheduled", more), "", list_address("job", state="scheduled")),
        *_of_held(stats, more),
        Tile(_("Running"), _sum(stats, "running", more), of, list_address("job", state="running")),
        Tile(_("Failed"), _sum(stats, "failed", more), lately, list_address("job", state="failed"), kind),
    ]


def _of_held(stats: Sequence[QueueStats], more: bool) -> list[Tile]:
    """The jobs that wait for a person, if there are some."""
    if not any(one.held for one in stats):
        return []
    held = _sum(stats, "held", more)
    return [Tile(_("Held"), held, gettext("after crashes"), list_address("job", state="held"), "warn")]


def _sum(stats: Sequence[QueueStats], name: str, more: bool) -> str:
    """The jobs of all queues, with "+" if there are more than are counted, or `more` queues than are read."""
    most = count_max(len(stats))
    capped = more or any(is_at_least(one, name, most) for one in stats)
    return number(sum(getattr(one, name) for one in stats)) + ("+" if capped else "")


def _of_held_back(held: HeldBack) -> Tile:
    """No list has these jobs: they are ready or scheduled, and counted as such, too."""
    more = "+" if held.capped else ""
    gates = ", ".join(f"{_GATES[gate]} {number(count)}" for gate, count in held.by_gate.items())
    note = gettext("among ready and scheduled: %(gates)s") % {"gates": gates}
    return Tile(_("Blocked"), number(sum(held.by_gate.values())) + more, note, "")


def _of_workers(workers: Workers) -> Tile:
    silent = gettext("%(n)s silent") % {"n": number(len(workers.silent))} if workers.silent else ""
    kind = "bad" if not workers.running else "warn" if workers.silent else ""
    return Tile(_("Workers"), number(workers.running), silent, list_address("worker"), kind)


NAME_CHARS, ABOUT_CHARS, ALARMS_SHOWN, SILENT_SHOWN = 80, 300, 50, 5
_OF_FAILED = ("failed", "dead_per_hour", "error_rate")
#: the figure of each alarm in words
WORDS: Mapping[str, StrOrPromise] = {
    "ready": _("ready jobs"),
    "scheduled": _("scheduled jobs"),
    "held": _("held jobs"),
    "running": _("running jobs"),
    "failed": _("failed jobs"),
    "oldest_age_seconds": _("age of the oldest ready job"),
    "rising_age_seconds": _("time for which the oldest job has been getting older"),
    "throughput_per_minute": _("jobs that end in a minute"),
    "dead_per_hour": _("jobs that failed for good in an hour"),
    "error_rate": _("share of runs that fail"),
    "silent": _("silent workers"),
    "stalled": _("workers whose claims make no progress"),
    "exhausted": _("workers on hosts that run short of something"),
    "refused_connections": _("refused connections to the database"),
    "late_schedules": _("schedules that are due and do not fire"),
}


def alarm_lines(firing: Sequence[Alarm], now: datetime) -> list[str]:
    """A line for each of the first ALARMS_SHOWN; and how many more there are."""
    found = [sentence(alarm, now) for alarm in firing[:ALARMS_SHOWN]]
    if more := len(firing) - len(found):
        found.append(ngettext("and %(n)s more alarm", "and %(n)s more alarms", more) % {"n": number(more)})
    return found


def sentence(alarm: Alarm, now: datetime) -> str:
    """What, how much, the limit, and since when, as a link to what it is about."""
    of_queue = gettext("queue %(queue)s") % {"queue": plain(alarm.queue, NAME_CHARS)}
    facts = {
        "subject": of_queue if alarm.queue else gettext("workers"),
        "name": WORDS.get(alarm.name, alarm.name),
        "value": _value(alarm.name, alarm.value),
        "limit": _value(alarm.name, alarm.threshold),
        "since": moment(alarm.since, now),
    }
    text = gettext("%(subject)s: %(name)s %(value)s, limit %(limit)s, since %(since)s") % facts
    if alarm.about:
        text += f" ({plain(alarm.names, ABOUT_CHARS)})"
    return link(_about(alarm), text)


def _about(alarm: Alarm) -> str:
    """The address of the workers, of the schedules, or of the jobs of the queue in the state that is counted."""
    if alarm.name == LATE:
        return list_address("schedule")
    if not alarm.queue:
        return list_address("worker")
    state = "failed" if alarm.name in _OF_FAILED else alarm.name if alarm.name in COUNTS else ""
    return list_address("job", queue=alarm.queue, **({"state": state} if state else {}))


def silent_lines(silent: Sequence[Silent], now: datetime) -> list[str]:
    """A line for each silent worker with a link to its page, the first SILENT_SHOWN; and how many more there are."""
    found = [_silent(one, now) for one in silent[:SILENT_SHOWN]]
    if more := len(silent) - len(found):
        text = ngettext("and %(n)s more silent worker", "and %(n)s more silent workers", more) % {"n": number(more)}
        found.append(link(list_address("worker"), text))
    return found


def late_lines(late: Late) -> list[str]:
    """A line about the schedules that are due and do not fire, if there are some."""
    if not late.count:
        return []
    text = ngettext(
        "%(n)s schedule is due and does not fire: %(name)s has been due for %(time)s",
        "%(n)s schedules are due and do not fire: %(name)s has been due for %(time)s",
        late.count,
    )
    facts = {"n": capped(late.count, LATE_MAX), "name": plain(late.first, NAME_CHARS), "time": span(late.seconds)}
    return [link(list_address("schedule"), text % facts)]


def _silent(worker: Silent, now: datetime) -> str:
    time = span((now - worker.heartbeat_at).total_seconds())
    if not worker.jobs:
        words = gettext("{name}: no heartbeat for {time}; it holds no job")
    else:
        words = ngettext(
            "{name}: no heartbeat for {time}, {n} lease will expire",
            "{name}: no heartbeat for {time}, {n} leases will expire",
            worker.jobs,
        )
    name = gettext("worker %(name)s") % {"name": plain(short_worker(worker.name), NAME_CHARS)}
    page = link(page_address("worker", worker.id), hint(name, plain(worker.name, NAME_CHARS)))
    return format_html(words, name=page, time=time, n=capped(worker.jobs, LEASES_MAX))


def _value(name: str, value: float) -> str:
    if name.endswith("_seconds"):
        return span(value)
    if name == "error_rate":
        return f"{100 * value:.0f} %"
    return number(value)


QUEUE_CHARS, QUEUES_SHOWN = 80, 50
_QUEUE = (
    Column(_("Queue")),
    Column(_("Ready"), is_number=True),
    Column(_("Oldest"), is_number=True),
    Column(_("Scheduled"), is_number=True),
    Column(_("Held"), is_number=True),
    Column(_("Running"), is_number=True),
    Column(_("Failed"), is_number=True),
    Column(_("Ended per minute"), is_number=True),
    Column(_("Failed runs"), is_number=True),
)
_TIMES = (Column(_("Wait, p50 / p95"), is_number=True), Column(_("Run, p50 / p95"), is_number=True))
_AVERAGES = (Column(_("Wait, mean / longest"), is_number=True), Column(_("Run, mean / longest"), is_number=True))
_FAILING = (
    Column(_("Task")),
    Column(_("Error"), is_message=True),
    Column(_("Attempts"), is_number=True),
    Column(_("Last")),
    Column(_("Go to")),
)


def queue_table(
    stats: Sequence[QueueStats],
    histories: Mapping[str, QueueHistory],
    modes: Mapping[str, str],
    may: Mapping[str, bool],
    label: str,
) -> Table:
    """The queues, with the longest wait first: what waits and runs in each, and how it ended, failed and waited.

    `label`: what the courses of ended jobs are, in words.
    """
    ordered = sorted(stats, key=lambda one: (-one.oldest_age_seconds, -one.ready, one.queue))[:QUEUES_SHOWN]
    averages = any(found.whole.wait_times is None for found in histories.values())
    most = count_max(len(stats))
    rows = [_queue(one, most, histories.get(one.queue), modes.get(one.queue), may, label) for one in ordered]
    return table_of((*_QUEUE, *(_AVERAGES if averages else _TIMES)), rows)


def queue_notes(number: int, *, more: bool) -> Iterator[str]:
    """What the table of so many queues leaves out; `more`: there are others, which were not counted."""
    if more:
        yield gettext("Only the first %(n)d queues by name are counted.") % {"n": number}
    if number > QUEUES_SHOWN:
        yield gettext("The %(n)d queues with the longest wait are shown.") % {"n": QUEUES_SHOWN}


def _queue(
    one: QueueStats, most: int, history: QueueHistory | None, mode: str | None, may: Mapping[str, bool], label: str
) -> list[str]:
    name = plain(one.queue, QUEUE_CHARS)
    if may["view_flowrule"]:
        name = link(address_of("flowrule_queue", queue=one.queue), name)
    if mode:
        name = format_html("{} {}", name, mode_badge(mode))
    # Without the last part, which has just begun: with it every line would fall at its end.
    course = history.ended[:-1] if history else []
    ended = number(round(one.throughput_per_minute, 1)) if one.throughput_per_minute else NOTHING
    return [
        name,
        _count(one, "ready", most),
        span(one.oldest_age_seconds) if one.oldest_age_seconds else NOTHING,
        _count(one, "scheduled", most),
        _count(one, "held", most),
        _count(one, "running", most),
        _count(one, "failed", most),
        format_html("{} {}", ended, sparkline(course, label=label)) if any(course) else ended,
        *(_of_runs(history.whole) if history else (NOTHING, NOTHING, NOTHING)),
    ]


def _of_runs(whole: Ends) -> tuple[str, str, str]:
    """The share of runs that failed, how long runs waited, and how long they took."""
    rate = marked(whole.error_rate, f"{100 * (whole.error_rate or 0):.0f} %")
    if whole.wait_times is not None:
        pairs = ((whole.wait_seconds(0.5), whole.wait_seconds(0.95)), (whole.run_seconds(0.5), whole.run_seconds(0.95)))
    else:
        pairs = (
            (whole.mean_wait_seconds, whole.wait_us_max / 1e6),
            (whole.mean_run_seconds, whole.run_us_max / 1e6),
        )
    waits, runs = (NOTHING if low is None or high is None else f"{span(low)} / {span(high)}" for low, high in pairs)
    return rate, waits, runs


def _count(one: QueueStats, state: str, most: int) -> str:
    """A count as a link to its jobs; counting stopped at `most`."""
    count = getattr(one, state)
    if not count:
        return NOTHING
    text = number(count) + ("+" if is_at_least(one, state, most) else "")
    return link(list_address("job", state=state, queue=one.queue), text)


def failing_table(failing: Sequence[Failing], now: datetime, may: Mapping[str, bool]) -> Table:
    """What fails now: task, error, count, last seen, and where to go on."""
    return table_of(_FAILING, [_failing(one, now, may) for one in failing])


def _failing(one: Failing, now: datetime, may: Mapping[str, bool]) -> list[str]:
    page = page_address("job", one.sample_job_id)
    links = [link(f"{page}#attempts", gettext("Traceback"))] if page else []
    if one.fingerprint and may["redrive_jobs"] and may["view_redrive"]:
        links.append(link(address_of("redrive_new", fingerprint=one.fingerprint), gettext("Retry all")))
    return [
        task_cell(one.task or ""),
        one.error or NOTHING,
        number(one.count),
        relative(one.last_seen, now),
        format_html_join(" ", '<span class="jobqueue-link">{}</span>', ((link,) for link in links)),
    ]
