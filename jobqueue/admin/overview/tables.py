"""The tables of the overview."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.charts import sparkline
from jobqueue.admin.overview.reading import Failing, count_max
from jobqueue.admin.page.addresses import address_of, link, list_address, page_address
from jobqueue.admin.page.cells import Column, Table, table_of
from jobqueue.admin.page.formatting import NOTHING, badge, hint, number, plain, relative, short_class, short_task, span
from jobqueue.admin.page.rates import marked
from jobqueue.models import FlowRule
from jobqueue.stats.ends import Ends
from jobqueue.stats.history import QueueHistory
from jobqueue.stats.live import is_at_least
from jobqueue.stats.queues import QueueStats

NAME_CHARS, QUEUES_SHOWN = 80, 50
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
    Column(_("Error")),
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
    averages = any(found.whole.waits is None for found in histories.values())
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
    name = plain(one.queue, NAME_CHARS)
    if may["view_flowrule"]:
        name = link(address_of("flowrule_queue", queue=one.queue), name)
    if mode:
        name = format_html("{} {}", name, badge("expired", str(FlowRule.Mode(mode).label)))
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
    if whole.waits is not None:
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
    task = hint(plain(short_task(one.task)), plain(one.task)) if one.task else gettext("(handler)")
    page = page_address("job", one.sample_job_id)
    links = [link(f"{page}#attempts", gettext("Traceback"))] if page else []
    if one.fingerprint and may["redrive_jobs"] and may["view_redrive"]:
        links.append(link(address_of("redrive_new", fingerprint=one.fingerprint), gettext("Retry all")))
    return [
        task,
        plain(short_class(one.error_class)) or NOTHING,
        number(one.count),
        relative(one.last_seen, now),
        format_html_join(" ", '<span class="jobqueue-link">{}</span>', ((link,) for link in links)),
    ]
