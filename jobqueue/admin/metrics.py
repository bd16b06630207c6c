"""The page of metrics: its filters, figures, charts and tables, and what is to be known about them.

The figures are read in bounded time and kept for a moment for everybody who looks. Charts are drawn as SVG on the
server, and as data with which a script draws them to zoom in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import get_language, gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue import metrics
from jobqueue.admin.page.addresses import link
from jobqueue.admin.page.charts import Range, Series, bars, ended_series, lines
from jobqueue.admin.page.formatting import (
    NOTHING,
    is_high,
    marked,
    number,
    plain,
    span,
    stamp,
    task_cell,
)
from jobqueue.admin.page.limited import kept
from jobqueue.admin.page.navigation import SitePage
from jobqueue.admin.page.tables import Column, Table, Tile, table_of
from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.db.time_limit import time_limit
from jobqueue.stats.ends import Ends, Kind
from jobqueue.stats.history import KINDS_MAX, Part, counted_kinds, ended


def metrics_view(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """The page. It leaves out a part whose read takes too long, and says so."""
    settings = load()
    ranges = offered(settings.stat_retention_seconds)
    filters = chosen(request.GET, ranges)
    found = figures(filters.span, filters.queue, filters.task, settings.database)
    known = known_kinds(settings.database)
    queues, tasks = ([], []) if found is None else (found.queues.rows, found.tasks.rows)
    of_queue = queue_choices(filters, known, [name for name, _ends in queues])
    context: dict[str, Any] = {
        **site.each_context(request),
        "title": PAGE.title,
        # Charts need the width.
        "is_nav_sidebar_enabled": False,
        "filters": filters,
        "ranges": [(filters.address(range=one.key), one.word, one is filters.span) for one in ranges],
        "queues": of_queue[:CHOICES_MAX],
        # Where a list would leave some out, their names are written.
        "queue_is_written": len(of_queue) > CHOICES_MAX or len(known) >= KINDS_MAX,
        "tasks": task_choices(filters, known, [name for name, _ends in tasks])[:CHOICES_MAX],
        "all_queues": filters.address(queue="", task=""),
        "is_slow": found is None,
        "is_empty": found is not None and not _has_ends(found),
        "scrape_address": _scrape_address(),
        "may_scrape": request.user.has_perm("jobqueue.view_jobstat"),
    }
    if found is not None and _has_ends(found):
        context |= _shown(found, filters)
        context["notes"] = list(_notes(found, filters, settings.stat_retention_seconds))
    return TemplateResponse(request, "admin/jobqueue/metrics.html", context)


def _has_ends(found: Figures) -> bool:
    return bool(found.total.ended or found.total.retried)


def _shown(found: Figures, filters: Filters) -> dict[str, Any]:
    charts = charts_of(found.parts, filters.span)
    instants = [part.begins_at for part in found.parts]
    # Of one queue or one task the table would repeat the figures above.
    tables = [
        *([] if filters.queue else [(gettext("By queue"), by_queue(found, filters), left_out(found.queues))]),
        *([] if filters.task else [(gettext("By task"), by_task(found, filters), left_out(found.tasks))]),
    ]
    return {
        "tiles": tiles(found.total, filters),
        "charts": [(chart.name, chart.svg(instants)) for chart in charts],
        "zoom": zoomable(charts, found.parts, filters.span),
        "tables": tables,
    }


def _notes(found: Figures, filters: Filters, retention_seconds: float | None) -> Iterator[str]:
    facts = {"time": stamp(found.read_at), "span": span(filters.span.kept_seconds)}
    yield gettext("As of %(time)s; a page that is opened in the next %(span)s shows the same.") % facts
    yield gettext("Failed runs are those that failed or were lost, also if the job was retried and then done.")
    if found.share < 1:
        facts = {"share": f"{max(1, round(100 * found.share))} %"}
        text = gettext(
            "Waits and run times are estimates from %(share)s of the rows of statistics; counts are of all rows."
        )
        yield text % facts
    if found.is_cut:
        text = gettext("The tables have the %(n)s pairs of queue and task with the most ended jobs only.")
        yield text % {"n": number(KINDS_MAX)}
    if filters.span.part == DAY and timezone.localtime(found.read_at).utcoffset():
        yield gettext("Days begin at midnight UTC.")
    if retention_seconds is not None and retention_seconds < filters.span.length.total_seconds():
        yield gettext("Statistics are kept for %(time)s: STAT_RETENTION_SECONDS.") % {"time": span(retention_seconds)}


def _scrape_address() -> str:
    """Where the project serves the figures for Prometheus; empty if it does not, or in a namespace."""
    try:
        return reverse(metrics.view)
    except NoReverseMatch:
        return ""


PAGE = SitePage("metrics", _("Metrics"), "jobqueue.view_job", metrics_view)


#: decimals of the values: seconds to the microsecond
_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. `unit` is that of the functions that draw; `shape`: "bars", "lines", or "log" with powers of ten."""

    name: str
    title: str
    unit: str
    shape: str
    series: list[Series]
    nothing: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it says so in words instead of being drawn."""
        return not any(value for one in self.series for value in one.values)

    def svg(self, instants: Sequence[datetime]) -> SafeString:
        """The chart as a figure with a table."""
        if self.shape == "bars":
            return bars(self.title, instants, self.series, unit=self.unit)
        is_log = self.shape == "log"
        return lines(self.title, instants, self.series, unit=self.unit, log=is_log, nothing=self.nothing)


def charts_of(parts: Sequence[Part], span: Range) -> list[Chart]:
    """What ended, which share of the runs failed, how long jobs waited, and how long they ran."""
    rates = [None if (rate := part.error_rate) is None else 100 * rate for part in parts]
    failed = [Series(gettext("share of all runs"), "dead", rates)]
    waits, run_times = _shares(parts, Part.wait_seconds), _shares(parts, Part.run_seconds)
    return [
        Chart("ended", gettext("Ended"), str(span.unit), "bars", ended_series(parts)),
        Chart("failed", gettext("Failed runs"), "%", "lines", failed, gettext("No run failed in this time.")),
        Chart("waits", gettext("Wait before the start"), "s", "log", waits, gettext("Nothing was run in this time.")),
        Chart("runs", gettext("Run time"), "s", "log", run_times, gettext("Nothing was run in this time.")),
    ]


def _shares(parts: Sequence[Part], seconds: Callable[[Part, float], float | None]) -> list[Series]:
    return [
        Series(gettext("median"), "p50", [seconds(part, 0.5) for part in parts]),
        Series(gettext("95 % at most"), "p95", [seconds(part, 0.95) for part in parts]),
    ]


def zoomable(charts: Sequence[Chart], parts: Sequence[Part], span: Range) -> dict[str, Any] | None:
    """The charts as data for history.js; None in a time zone without a name, which browsers do not know.

    Instants are seconds since 1970 UTC. A value is None where nothing ended.
    """
    zone = getattr(timezone.get_current_timezone(), "key", None)
    drawn = [one for one in charts if not one.is_empty]
    if zone is None or not drawn:
        return None
    return {
        "zone": zone,
        "language": get_language(),
        "seconds": int(span.part.total_seconds()),
        "times": [int(part.begins_at.timestamp()) for part in parts],
        "charts": {
            one.name: {"shape": one.shape, "unit": one.unit, "series": list(_data(one.series))} for one in drawn
        },
    }


def _data(series: Sequence[Series]) -> Iterator[dict[str, Any]]:
    for one in series:
        values = [None if value is None else round(value, _DECIMALS) for value in one.values]
        yield {"name": one.name, "kind": one.kind, "values": values}


NAME_CHARS = 80
MEDIAN, MOST = 0.5, 0.95
_FIGURES = (
    Column(_("Ended"), is_number=True),
    Column(_("Failed for good"), is_number=True),
    Column(_("Failed runs"), is_number=True),
    Column(_("Wait, median"), is_number=True),
    Column(_("Wait, 95 %"), is_number=True),
    Column(_("Run time, median"), is_number=True),
    Column(_("Run time, 95 %"), is_number=True),
    Column(_("Total run time"), is_number=True),
)


def tiles(total: Ends, filters: Filters) -> list[Tile]:
    """The sums of the range."""
    dead = gettext("%(n)s failed for good") % {"n": number(total.dead)} if total.dead else ""
    retried = ngettext("%(n)s run was retried", "%(n)s runs were retried", total.retried) % {"n": number(total.retried)}
    busy = total.run_us / 1e6 / filters.span.length.total_seconds()
    at_a_time = gettext("%(n)s at a time on average") % {"n": number(busy)} if busy >= 0.01 else ""
    return [
        Tile(_("Ended"), number(total.ended), dead),
        Tile(
            _("Failed runs"),
            _percent(total.error_rate),
            retried if total.retried else "",
            kind="bad" if is_high(total.error_rate) else "",
        ),
        Tile(_("Wait, median"), _time(total.wait_seconds(MEDIAN)), _most(total.wait_seconds(MOST))),
        Tile(_("Run time, median"), _time(total.run_seconds(MEDIAN)), _most(total.run_seconds(MOST))),
        Tile(_("Total run time"), span(total.run_us / 1e6), at_a_time),
    ]


def _most(seconds: float | None) -> str:
    return "" if seconds is None else gettext("95 %% at most %(time)s") % {"time": span(seconds)}


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None else span(seconds)


def _percent(share: float | None) -> str:
    if share is None:
        return NOTHING
    # A share above 0 must not be rounded to 0 %.
    return gettext("below 0.1 %") if 0 < share < 0.001 else f"{number(round(100 * share, 1))} %"


def by_queue(found: Figures, filters: Filters) -> Table:
    """A row for each queue; its name leads to the queue alone."""
    rows = [_row(_queue(name, filters), one) for name, one in found.queues.rows]
    return table_of([Column(_("Queue")), *_FIGURES], rows)


def by_task(found: Figures, filters: Filters) -> Table:
    """A row for each task; its name leads to the task alone."""
    rows = [_row(_task(name, filters), one) for name, one in found.tasks.rows]
    return table_of([Column(_("Task")), *_FIGURES], rows)


def left_out(sums: Sums) -> str:
    """What a table leaves out; empty if it has all."""
    facts = {"shown": number(ROWS_SHOWN), "n": number(sums.number)}
    return gettext("The %(shown)s with the most ended jobs, of %(n)s.") % facts if sums.number > ROWS_SHOWN else ""


def _queue(name: str, filters: Filters) -> str:
    if not name:
        return gettext("(others)")
    return link(filters.address(queue=name), plain(name, NAME_CHARS))


def _task(name: str, filters: Filters) -> str:
    cell = task_cell(name, NAME_CHARS)
    return link(filters.address(task=name), cell) if name else cell


def _row(name: str, ends: Ends) -> list[str]:
    return [
        name,
        number(ends.ended),
        number(ends.dead) if ends.dead else NOTHING,
        marked(ends.error_rate, _percent(ends.error_rate)),
        _time(ends.wait_seconds(MEDIAN)),
        _time(ends.wait_seconds(MOST)),
        _time(ends.run_seconds(MEDIAN)),
        _time(ends.run_seconds(MOST)),
        span(ends.run_us / 1e6) if ends.run_us else NOTHING,
    ]


MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


#: the part of each is the finest that all statistics of this age still have
RANGES = (
    Range("1h", _("1 hour"), HOUR, MINUTE, _("jobs in a minute"), 10),
    Range("24h", _("24 hours"), 24 * HOUR, HOUR, _("jobs in an hour"), 60),
    Range("7d", _("7 days"), 7 * DAY, HOUR, _("jobs in an hour"), 60),
    Range("30d", _("30 days"), 30 * DAY, DAY, _("jobs in a day"), 300),
    Range("90d", _("90 days"), 90 * DAY, DAY, _("jobs in a day"), 300),
)


def offered(retention_seconds: float | None) -> list[Range]:
    """The ranges that statistics can fill: up to the first one that is at least as long as statistics are kept."""
    found = []
    for one in RANGES:
        found.append(one)
        if retention_seconds is not None and one.length.total_seconds() >= retention_seconds:
            break
    return found


#: names that can be chosen, and characters of each
CHOICES_MAX, LABEL_CHARS = 200, 60
Choices = list[tuple[str, str]]


class Filters(NamedTuple):
    """What an address chooses. An empty name means all."""

    span: Range
    queue: str
    task: str

    @property
    def is_narrowed(self) -> bool:
        """Whether one queue or one task is chosen."""
        return bool(self.queue or self.task)

    def address(self, **changes: str) -> str:
        """The query of the page with these values of "range", "queue" and "task" instead."""
        given: Mapping[str, str] = {"range": self.span.key, "queue": self.queue, "task": self.task, **changes}
        return "?" + urlencode({name: value for name, value in given.items() if value})


def chosen(given: QueryDict, ranges: list[Range]) -> Filters:
    """The filters of an address; an unknown range is the first one."""
    span = next((one for one in ranges if one.key == given.get("range")), ranges[0])
    return Filters(span, _name(given, "queue"), _name(given, "task"))


def _name(given: QueryDict, of: str) -> str:
    # No name contains NUL, and PostgreSQL's driver raises an error for it.
    return given.get(of, "").strip().replace("\x00", "\ufffd")


def queue_choices(filters: Filters, known: Iterable[Kind], met: Iterable[str]) -> Choices:
    """The queues by name, also the chosen one if nothing ever ended in it. `met`: those of the figures."""
    return _choices({kind.queue for kind in known} | {*met}, filters.queue)


def task_choices(filters: Filters, known: Iterable[Kind], met: Iterable[str]) -> Choices:
    """The tasks of the chosen queue, or of all."""
    return _choices({kind.task for kind in known if filters.queue in ("", kind.queue)} | {*met}, filters.task)


def _choices(names: set[str], also: str) -> Choices:
    found = sorted(name for name in names if name)
    if also and also not in found:
        found.insert(0, also)
    return [(name, plain(name, LABEL_CHARS)) for name in found]


#: rows of each table
ROWS_SHOWN = 50
READ_SECONDS = 2.0
#: how long the names are kept that can be chosen
NAMES_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums by a name, those with the most ends first: ROWS_SHOWN of them, and how many there are."""

    rows: list[tuple[str, Ends]]
    number: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What ended in a range. `share` and `is_cut` are those of stats.history.Ended."""

    read_at: datetime
    parts: list[Part]
    total: Ends
    queues: Sums
    tasks: Sums
    share: float
    is_cut: bool


def figures(chosen: Range, queue: str, task: str, using: str) -> Figures | None:
    """The figures of all queues, or of the queue and the task that are not empty; None if reading took too long."""
    # A name may have any characters; the key of a cache may not.
    place = hashlib.sha256(json.dumps([queue, task]).encode()).hexdigest()[:32]
    name = f"metrics-{using}-{chosen.key}-{place}"
    return kept(name, lambda: _read(chosen, queue, task, using), chosen.kept_seconds)


def known_kinds(using: str) -> list[Kind]:
    """The queues and tasks that have ended jobs, by name, KINDS_MAX at most; [] if reading took too long."""
    return kept(f"metrics-{using}-kinds", lambda: _kinds(using), NAMES_SECONDS) or []


def _read(chosen: Range, queue: str, task: str, using: str) -> Figures:
    now = read_now(using)
    found = ended(now, chosen.length, chosen.part, by="task", using=using, queue=queue or None, task=task or None)
    total = Ends()
    for part in found.parts:
        total.add(part)
    queues = _sums(found.kinds, lambda kind: kind.queue)
    tasks = _sums(found.kinds, lambda kind: kind.task)
    return Figures(now, found.parts, total, queues, tasks, found.share, found.is_cut)


def _sums(kinds: Mapping[Kind, Ends], name_of: Callable[[Kind], str]) -> Sums:
    found: dict[str, Ends] = {}
    for kind, ends in kinds.items():
        found.setdefault(name_of(kind), Ends()).add(ends)
    ordered = sorted(found.items(), key=lambda item: (-item[1].ended, -item[1].retried, item[0]))
    return Sums(ordered[:ROWS_SHOWN], len(ordered))


def _kinds(using: str) -> list[Kind]:
    with time_limit(READ_SECONDS, using=using):
        return counted_kinds(using, KINDS_MAX)
