"""The page of metrics: its filters, figures, charts and tables, and what is to be known about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue import metrics
from jobqueue.admin.metrics import reading
from jobqueue.admin.metrics.charts import charts_of, zoomable
from jobqueue.admin.metrics.filters import CHOICES_MAX, Filters, chosen, queue_choices, task_choices
from jobqueue.admin.metrics.ranges import DAY, offered
from jobqueue.admin.metrics.reading import Figures
from jobqueue.admin.metrics.tables import by_queue, by_task, left_out, tiles
from jobqueue.admin.page.formatting import number, span, stamp
from jobqueue.admin.page.site_pages import SitePage
from jobqueue.conf import load
from jobqueue.stats.summary import KINDS_MAX


def metrics_view(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """The page. It leaves out a part whose read takes too long, and says so."""
    settings = load()
    ranges = offered(settings.stat_retention_seconds)
    filters = chosen(request.GET, ranges)
    found = reading.figures(filters.span, filters.queue, filters.task, settings.database)
    known = reading.known_kinds(settings.database)
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
