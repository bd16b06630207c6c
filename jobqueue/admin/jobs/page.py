"""The page of a job: what a person reads of it, from top to bottom."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.http import HttpRequest
from django.utils.translation import gettext

from jobqueue.admin.dead_letters.failure_note import note_block
from jobqueue.admin.jobs import page_fields
from jobqueue.admin.jobs.attempts import (
    ATTEMPTS_SHOWN,
    NEWEST_CHARS,
    Attempt,
    end_of,
    ends_with_error_of,
    panels,
    read_attempts,
)
from jobqueue.admin.jobs.buttons import OF_LEASES, Button, buttons_of
from jobqueue.admin.jobs.lease_panel import Lease, lease_of
from jobqueue.admin.jobs.reasons import Reason, listed, reasons_of
from jobqueue.admin.jobs.states import state_label, state_of, what_next
from jobqueue.admin.jobs.timeline import Timeline, timeline
from jobqueue.admin.page.facts import Fact
from jobqueue.admin.page.formatting import NOTHING, badge, plain
from jobqueue.admin.page.history import recent
from jobqueue.context.progress import read_progress
from jobqueue.models import Job

if TYPE_CHECKING:
    from jobqueue.admin.jobs.states import ShownJob


@dataclass(frozen=True, slots=True)
class Progress:
    """A report: its text, and of one with a total the value and the end of its bar."""

    text: str
    value: float | None
    total: float | None


@dataclass(frozen=True, slots=True)
class JobPage:
    """The parts of the page; an empty one is left out."""

    state: str
    line: list[str]
    next: str
    progress: Progress | None
    reasons: list[Reason]
    buttons: list[Button]
    lease: Lease | None
    lease_buttons: list[Button]
    timeline: Timeline
    failure: list[Fact]
    error: str  # the last error, if it is that of no attempt
    attempts: list[Attempt]
    more: str  # says so if there are more attempts
    content: list[tuple[str, str]]
    details: list[Fact]
    internals: list[Fact]
    history: list[tuple[str, str, str]]


def job_page(job: ShownJob, request: HttpRequest, permitted: Container[str], *, shows_content: bool) -> JobPage:
    """The page for this user, who may use the `permitted` verbs. About ten statements, each by an index."""
    rows, reasons = read_attempts(job.pk), reasons_of(job)
    buttons = buttons_of(job, permitted)
    note = note_block(job.fingerprint, request) if job.fingerprint else NOTHING
    own_error = bool(job.last_error) and not (rows and ends_with_error_of(job, rows[0]))
    more = gettext("Only the newest %(n)d attempts are shown.") % {"n": ATTEMPTS_SHOWN}
    return JobPage(
        state=badge(state_of(job), state_label(job)),
        line=page_fields.header(job, request),
        next=what_next(job, reasons),
        progress=_progress(job),
        reasons=listed(reasons),
        buttons=[one for one in buttons if one.name not in OF_LEASES],
        lease=lease_of(job, request),
        lease_buttons=[one for one in buttons if one.name in OF_LEASES],
        timeline=timeline(job, rows[:ATTEMPTS_SHOWN]),
        failure=page_fields.failure(job, note, request, is_told=bool(rows)),
        error=end_of(job.last_error or "", NEWEST_CHARS) if own_error else "",
        attempts=panels(job, rows),
        more=more if len(rows) > ATTEMPTS_SHOWN else "",
        content=page_fields.content(job) if shows_content else [],
        details=page_fields.details(job, request),
        internals=page_fields.internals(job),
        history=recent(Job, job.pk),
    )


def _progress(job: ShownJob) -> Progress | None:
    """The last report of a job that has not ended well."""
    found = None if job.status == Job.Status.DONE else read_progress(job.progress)
    if found is None:
        return None
    known = found.total is not None and found.total > 0
    return Progress(plain(found), found.done if known else None, found.total if known else None)
