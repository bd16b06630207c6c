"""The tables of the overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.charts import sparkline
from jobqueue.admin.overview.reading import COUNT_MAX, Failing
from jobqueue.admin.page.addresses import list_address, page_address
from jobqueue.admin.page.cells import Column, Table, table_of
from jobqueue.admin.page.formatting import NOTHING, badge, hint, number, plain, relative, short_class, short_task, span
from jobqueue.models import FlowRule
from jobqueue.stats.queues import QueueStats

NAME_CHARS, QUEUES_SHOWN = 80, 50
#: from this share of failed runs on a queue is marked
HIGH_ERROR_RATE = 0.1
_QUEUE = (
    Column(_("Queue")),
    Column(_("Ready"), is_number=True),
    Column(_("Oldest"), is_number=True),
    Column(_("Scheduled"), is_number=True),
    Column(_("Running"), is_number=True),
    Column(_("Failed"), is_number=True),
    Column(_("Ended per minute"), is_number=True),
    Column(_("Failed runs"), is_number=True),
)
_FAILING = (
    Column(_("Task")),
    Column(_("Error")),
    Column(_("Attempts"), is_number=True),
    Column(_("Last")),
    Column(_("Go to")),
)


def queue_table(
    stats: Sequence[QueueStats],
    courses: Mapping[str, Sequence[int]],
    modes: Mapping[str, str],
    may: Mapping[str, bool],
) -> Table:
    """The queues, with the longest wait first: what waits, runs, ended and failed in each."""
    ordered = sorted(stats, key=lambda one: (-one.oldest_age_seconds, -one.ready, one.queue))
    return table_of(
        _QUEUE, [_queue(one, courses.get(one.queue, ()), modes.get(one.queue), may) for one in ordered[:QUEUES_SHOWN]]
    )


def _queue(one: QueueStats, course: Sequence[int], mode: str | None, may: Mapping[str, bool]) -> list[str]:
    name = plain(one.queue, NAME_CHARS)
    if may["view_flowrule"]:
        address = f"{reverse('admin:jobqueue_flowrule_queue')}?{urlencode({'queue': one.queue})}"
        name = format_html('<a href="{}">{}</a>', address, name)
    if mode:
        name = format_html("{} {}", name, badge("expired", str(FlowRule.Mode(mode).label)))
    rate = f"{100 * one.error_rate:.0f} %" if one.error_rate else NOTHING
    if one.error_rate >= HIGH_ERROR_RATE:
        rate = format_html('<strong class="jobqueue-high">{}</strong>', rate)
    label = gettext("Jobs that ended in each of the last %(n)d minutes") % {"n": len(course)}
    ended = number(round(one.throughput_per_minute, 1)) if one.throughput_per_minute else NOTHING
    return [
        name,
        _count(one, "ready"),
        span(one.oldest_age_seconds) if one.oldest_age_seconds else NOTHING,
        _count(one, "scheduled"),
        _count(one, "running"),
        _count(one, "failed"),
        format_html("{} {}", ended, sparkline(course, label=label)) if any(course) else ended,
        rate,
    ]


def _count(one: QueueStats, state: str) -> str:
    """A count as a link to its jobs."""
    count = getattr(one, state)
    if not count:
        return NOTHING
    text = number(count) + ("+" if count >= COUNT_MAX else "")
    return format_html('<a href="{}">{}</a>', list_address("job", state=state, queue=one.queue), text)


def failing_table(failing: Sequence[Failing], now: datetime, may: Mapping[str, bool]) -> Table:
    """What fails now: task, error, count, last seen, and where to go on."""
    return table_of(_FAILING, [_failing(one, now, may) for one in failing])


def _failing(one: Failing, now: datetime, may: Mapping[str, bool]) -> list[str]:
    task = hint(plain(short_task(one.task)), plain(one.task)) if one.task else gettext("(handler)")
    sample = format_html('<a href="{}#attempts">{}</a>', page_address("job", one.sample_job_id), gettext("Traceback"))
    links = [sample]
    if one.fingerprint and may["redrive_jobs"] and may["view_redrive"]:
        address = f"{reverse('admin:jobqueue_redrive_new')}?{urlencode({'fingerprint': one.fingerprint})}"
        links.append(format_html('<a href="{}">{}</a>', address, gettext("Retry all")))
    return [
        task,
        plain(short_class(one.error_class)) or NOTHING,
        number(one.count),
        relative(one.last_seen, now),
        format_html_join(" ", '<span class="jobqueue-link">{}</span>', ((link,) for link in links)),
    ]
