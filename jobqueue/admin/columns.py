"""What one cell of a job shows, in the list and on the job's page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db.models.functions import Right
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.filters import CAUSES
from jobqueue.admin.formatting import (
    NOTHING,
    badge,
    block,
    label,
    last_line,
    moment,
    plain,
    pretty,
    relative,
    span,
    stamp,
)
from jobqueue.admin.job_states import state_of, what_next, words
from jobqueue.conf import load
from jobqueue.context.progress import read_progress
from jobqueue.models import Job, JobAttempt
from jobqueue.validation import readable_key

ATTEMPTS_SHOWN = 50
ATTEMPT_CHARS = 4000


def moment_of(field: str) -> Callable[[Any, Any], str]:
    """A column for an instant, in UTC and relative to the database's clock."""

    @admin.display(description=label(Job, field))
    def show(self: Any, job: Any) -> str:
        return moment(getattr(job, field), job.now)

    return show


def name_of(field: str, title: Any = None) -> Callable[[Any, Any], str]:
    """A column for a name that another program chose."""

    @admin.display(description=title or label(Job, field))
    def show(self: Any, job: Any) -> str:
        value = getattr(job, field)
        return plain(value) if value else NOTHING

    return show


class JobColumns:
    """The columns that are computed."""

    queue_name = name_of("queue")
    held_by = name_of("locked_by")
    ran_by = name_of("last_worker")
    reason = name_of("wait_reason")
    created = moment_of("created_at")
    due_at = moment_of("run_at")
    started = moment_of("last_started_at")
    finished = moment_of("finished_at")
    updated = moment_of("updated_at")
    expires = moment_of("expires_at")
    leased_at = moment_of("locked_at")
    leased_until = moment_of("lock_until")

    @admin.display(description=_("state"))
    def state(self, job: Any) -> str:
        """The status, with what the clock says about it."""
        return badge(state_of(job), words(job))

    @admin.display(description=_("task"))
    def kind(self, job: Any) -> str:
        """The task's path, or that the queue's handler runs it."""
        return plain(job.task) if job.task else gettext("(handler)")

    @admin.display(description=_("when"))
    def when(self, job: Any) -> str:
        """How far the instant that matters in this state: due, end of the lease, end."""
        if job.status == Job.Status.READY:
            return relative(job.run_at, job.now)
        if job.status != Job.Status.PROCESSING:
            return relative(job.finished_at or job.updated_at, job.now)
        if job.lock_until < job.now:
            return relative(job.lock_until, job.now)
        return gettext("%(time)s left") % {"time": span((job.lock_until - job.now).total_seconds())}

    @admin.display(description=_("failed attempts"))
    def attempt_of(self, job: Any) -> str:
        """Attempts that ended in failure or loss, of how many."""
        return f"{job.attempts}/{job.max_attempts}"

    @admin.display(description=_("worker"))
    def worker(self, job: Any) -> str:
        """Who holds it, or who ran it last."""
        return plain(job.locked_by or job.last_worker or NOTHING)

    @admin.display(description=_("note"))
    def note(self, job: Any) -> str:
        """Why it waits, or the last line of the last error."""
        if job.status == Job.Status.READY and job.wait_reason:
            return plain(job.wait_reason, 120)
        return last_line(job.error_tail)

    @admin.display(description=_("last error"))
    def error_text(self, job: Any) -> str:
        """The whole last error."""
        return block(job.last_error) if job.last_error else NOTHING

    @admin.display(description=_("cause"))
    def cause_word(self, job: Any) -> str:
        """The cause class."""
        return str(CAUSES.get(job.cause, plain(job.cause or NOTHING)))

    @admin.display(description=_("dedupe key"))
    def dedupe(self, job: Any) -> str:
        """The key as text where it is text."""
        return plain(readable_key(job.dedupe_key)) if job.dedupe_key else NOTHING

    @admin.display(description=_("ordering key"))
    def order_key(self, job: Any) -> str:
        """The key as text where it is text."""
        return plain(readable_key(job.ordering_key)) if job.ordering_key else NOTHING

    @admin.display(description=_("progress"))
    def progress_text(self, job: Any) -> str:
        """3 / 10 (30 %): what the job said last."""
        found = read_progress(job.progress)
        return NOTHING if found is None else plain(found)

    @admin.display(description=_("options"))
    def options_json(self, job: Any) -> str:
        """Indented JSON."""
        return pretty(job.options)

    @admin.display(description=_("payload"))
    def payload_json(self, job: Any) -> str:
        """Indented JSON."""
        return pretty(job.payload)

    @admin.display(description=_("result"))
    def result_json(self, job: Any) -> str:
        """Indented JSON."""
        return pretty(job.result)

    @admin.display(description=_("what happens next"))
    def next(self, job: Any) -> str:
        """One sentence."""
        return what_next(job)

    @admin.display(description=_("history of failed attempts"))
    def attempts_table(self, job: Any) -> str:
        """The newest 50, newest first; each opens to its whole error."""
        rows = JobAttempt.objects.using(load().database).filter(job_id=job.pk).order_by("-id").defer("error")
        body = format_html_join(
            "", ATTEMPT_ROW, map(_cells, rows.annotate(tail=Right("error", ATTEMPT_CHARS))[:ATTEMPTS_SHOWN])
        )
        times = (gettext("started (UTC)"), gettext("ended (UTC)"))
        titles = (gettext("no."), *times, gettext("worker"), gettext("cause"), gettext("error"))
        head = format_html_join("", '<th scope="col">{}</th>', ((title,) for title in titles))
        table = '<table class="jobqueue-attempts"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>'
        return format_html(table, head, body) if body else NOTHING


ATTEMPT_ROW = (
    "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
    "<td><details><summary>{}</summary>{}</details></td></tr>"
)


def _cells(attempt: Any) -> tuple[Any, ...]:
    return (
        attempt.attempt,
        NOTHING if attempt.started_at is None else stamp(attempt.started_at),
        stamp(attempt.ended_at),
        plain(attempt.worker or NOTHING),
        CAUSES.get(attempt.cause, plain(attempt.cause)),
        last_line(attempt.tail, 300),
        format_html("{}{}", block(attempt.tail), _log(attempt.log)),
    )


def _log(lines: str | None) -> str:
    return format_html("<p>{}</p>{}", gettext("What it has logged"), block(lines)) if lines else ""
