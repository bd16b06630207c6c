"""The overview as a page: the sections that the user may see, from what was read for all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.charts import Series, bars, lines
from jobqueue.admin.overview import reading
from jobqueue.admin.overview.alarms import alarm_lines, late_lines, silent_lines
from jobqueue.admin.overview.tables import failing_table, queue_notes, queue_table
from jobqueue.admin.overview.tiles import tiles
from jobqueue.admin.page.limited import TOGETHER_SECONDS
from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.db.time_limit import time_limit
from jobqueue.stats.history import Part

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


class Range(NamedTuple):
    """A span of time that can be chosen."""

    key: str
    word: StrOrPromise
    length: timedelta
    part: timedelta
    unit: StrOrPromise
    kept_seconds: int = reading.KEPT_SECONDS  # how long its history is shown to everybody


_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
RANGES = (
    Range("15m", _("15 minutes"), 15 * _MINUTE, _MINUTE, _("jobs in a minute")),
    Range("1h", _("1 hour"), 60 * _MINUTE, _MINUTE, _("jobs in a minute")),
    Range("24h", _("24 hours"), 24 * _HOUR, _HOUR, _("jobs in an hour"), 15),
    Range("7d", _("7 days"), 168 * _HOUR, 6 * _HOUR, _("jobs in 6 hours"), 15),
)
#: seconds between two refreshes that can be chosen; 0 is off
REFRESHES = (0, 2, 5, 15, 60)


def overview(request: HttpRequest, app_list: object) -> dict[str, Any]:
    """The context of the page. A section whose permission the user lacks, or that takes too long, is not read."""
    using, may = load().database, _permissions(request)
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


def _permissions(request: HttpRequest) -> dict[str, bool]:
    names = (
        "view_job",
        "view_worker",
        "view_jobalarm",
        "view_flowrule",
        "redrive_jobs",
        "view_redrive",
        "view_schedule",
    )
    return {name: request.user.has_perm(f"jobqueue.{name}") for name in names}


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
    ended = [
        Series(gettext("done"), "ok", [part.done for part in parts]),
        Series(gettext("retried"), "retried", [part.retried for part in parts]),
        Series(gettext("failed for good"), "dead", [part.dead for part in parts]),
    ]
    return [
        bars(gettext("Ended"), instants, ended, unit=str(chosen.unit)),
        lines(gettext("Wait before the start"), instants, _waits(parts), unit="s", log=True),
    ]


def _waits(parts: Sequence[Part]) -> list[Series]:
    """The median and the 95th percentile; where too many rows would have to be added up, the mean and the longest."""
    if any(part.waits is None for part in parts):
        longest = [part.wait_us_max / 1e6 if part.runs else None for part in parts]
        means = [part.mean_wait_seconds for part in parts]
        return [Series(gettext("mean"), "p50", means), Series(gettext("longest"), "p95", longest)]
    return [
        Series(gettext("median"), "p50", [part.wait_seconds(0.5) for part in parts]),
        Series(gettext("95 % at most"), "p95", [part.wait_seconds(0.95) for part in parts]),
    ]
