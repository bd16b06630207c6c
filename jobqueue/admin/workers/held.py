"""The jobs that workers hold: some of them in the list of workers, and all on the page of one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.addresses import link, list_address
from jobqueue.admin.page.cells import Column, Table, table_of
from jobqueue.admin.page.formatting import NOTHING, hint, job_link, moment, number, plain, relative, short_task, span
from jobqueue.maintenance.worker_list import HeldJob

if TYPE_CHECKING:
    from jobqueue.admin.workers.states import ShownWorker

#: jobs of each worker in the list, and on the page of one
IN_LIST, ON_PAGE = 3, 100
NAME_CHARS = 60
_COLUMNS = (Column(_("Job")), Column(_("Task")), Column(_("Queue")), Column(_("Held since")), Column(_("Lease ends")))


def busy(worker: ShownWorker, *, linked: bool) -> str:
    """Such as "3 of 8", `linked` to the list of these jobs."""
    text = gettext("%(n)s of %(most)s") % {"n": number(worker.jobs), "most": number(worker.concurrency)}
    if not linked or not worker.jobs:
        return text
    return link(list_address("job", state="running", worker=worker.name), text)


def some(held: Sequence[HeldJob], count: int, now: datetime) -> str:
    """The first IN_LIST jobs as lines: id, task, and since when; and how many of `count` there are besides."""
    lines: list[str] = [
        format_html(
            '<span title="{}">{} {}, {}</span>',
            moment(job.since, now),
            job_link(job.id),
            plain(short_task(job.task) if job.task else job.queue, NAME_CHARS),
            NOTHING if job.since is None else span(max(0.0, (now - job.since).total_seconds())),
        )
        for job in held[:IN_LIST]
    ]
    if count > len(lines) > 0:
        lines.append(gettext("and %(n)s more") % {"n": number(count - len(lines))})
    return format_html_join("", '<span class="jobqueue-part">{}</span>', ((line,) for line in lines))


def table(held: Sequence[HeldJob], now: datetime) -> Table:
    """The first ON_PAGE jobs."""
    rows = [
        (
            job_link(job.id),
            hint(plain(short_task(job.task), NAME_CHARS), plain(job.task)) if job.task else gettext("(handler)"),
            plain(job.queue),
            NOTHING if job.since is None else hint(relative(job.since, now), moment(job.since, now)),
            NOTHING if job.lease_until is None else hint(relative(job.lease_until, now), moment(job.lease_until, now)),
        )
        for job in held[:ON_PAGE]
    ]
    return table_of(_COLUMNS, rows)
