"""The computed columns of a job, in the list and on its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.db.models.functions import Right
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.states import state_label, state_of, what_next
from jobqueue.admin.page.causes import CAUSES, REQUESTED
from jobqueue.admin.page.formatting import (
    NOTHING,
    badge,
    error_note,
    hint,
    json_of,
    key_of,
    moment,
    moment_of,
    name_of,
    plain,
    relative,
    same_failure,
    secretless,
    short_class,
    short_task,
    short_worker,
    span,
    stacked,
    stamp,
)
from jobqueue.admin.page.verb_admin import ERROR_TAIL_CHARS
from jobqueue.conf import load
from jobqueue.context.progress import read_progress
from jobqueue.explain.words import reason_in_words
from jobqueue.masking import mask_tail, mask_text
from jobqueue.models import Job, JobAttempt
from jobqueue.ordering import SCHEDULED

if TYPE_CHECKING:
    from jobqueue.admin.jobs.states import ShownJob

NOTE_CHARS, HINT_CHARS = 120, 500
ATTEMPTS_SHOWN = 50
ATTEMPT_CHARS = 4000
_ATTEMPT_ROW = (
    "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
    "<td><details><summary>{}</summary>{}</details></td></tr>"
)


class JobColumns:
    """A mixin with one method or attribute per column."""

    queue_name = name_of(Job, "queue")
    held_by = name_of(Job, "locked_by")
    ran_by = name_of(Job, "last_worker")
    created = moment_of(Job, "created_at")
    due_at = moment_of(Job, "run_at")
    started = moment_of(Job, "last_started_at")
    finished = moment_of(Job, "finished_at")
    updated = moment_of(Job, "updated_at")
    expires = moment_of(Job, "expires_at")
    leased_at = moment_of(Job, "locked_at")
    leased_until = moment_of(Job, "lock_until")
    dedupe = key_of(Job, "dedupe_key")
    order_key = key_of(Job, "ordering_key")
    options_json = json_of(Job, "options")
    payload_json = json_of(Job, "payload")
    result_json = json_of(Job, "result")

    @admin.display(description=_("wait reason"))
    def reason(self, job: ShownJob) -> str:
        """In words; the code and its subject as a hint, if they are something else."""
        return hint(
            plain(reason_in_words(job.wait_reason, job.gate)) or NOTHING, plain(mask_text(job.wait_reason or NOTHING))
        )

    @admin.display(description=_("state"))
    def state(self, job: ShownJob) -> str:
        return badge(state_of(job), state_label(job))

    @admin.display(description=_("queue"))
    def queue_and_priority(self, job: ShownJob) -> str:
        """The queue; below it the priority, unless it is the usual one."""
        priority = gettext("priority %(n)d") % {"n": job.priority} if job.priority else ""
        return stacked(plain(job.queue), priority)

    @admin.display(description=_("task, note"))
    def task_and_note(self, job: ShownJob) -> str:
        """The app and the function of the task, with its whole name as a hint; below it the note."""
        return stacked(hint(plain(short_task(job.task)), plain(job.task)) if job.task else _handler(), _note(job))

    @admin.display(description=_("task"))
    def task_name(self, job: ShownJob) -> str:
        return plain(job.task) if job.task else _handler()

    @admin.display(description=_("when, worker"))
    def when_and_worker(self, job: ShownJob) -> str:
        """The time to or since the instant that matters; below it the worker that holds the job, or ran it last."""
        name = plain(job.locked_by or job.last_worker or "")
        return stacked(_when(job), hint(short_worker(name), name))

    @admin.display(description=_("duration, lease"))
    def duration(self, job: ShownJob) -> str:
        """How long the last run took, or takes so far; below it what is left of the lease."""
        if job.status == Job.Status.READY or job.last_started_at is None:
            return NOTHING
        if job.status != Job.Status.PROCESSING:
            end = job.finished_at
            return NOTHING if end is None else span(max(0.0, (end - job.last_started_at).total_seconds()))
        ran = span(max(0.0, (job.now - job.last_started_at).total_seconds()))
        return stacked(ran, hint(_lease(job), moment(job.lock_until, job.now)))

    @admin.display(description=_("failed attempts"))
    def attempt_of(self, job: ShownJob) -> str:
        """Failed and lost attempts, and the largest number of them."""
        return f"{job.attempts}/{job.max_attempts}"

    @admin.display(description=_("last error"))
    def error_text(self, job: ShownJob) -> str:
        return secretless(job.last_error) if job.last_error else NOTHING

    @admin.display(description=_("cause"))
    def cause_word(self, job: ShownJob) -> str:
        return str(CAUSES.get(job.cause, plain(job.cause or NOTHING)))

    @admin.display(description=_("fingerprint of the failure"))
    def failure_kind(self, job: ShownJob) -> str:
        """The fingerprint, as a link to the dead letters that have the same."""
        return same_failure(job.fingerprint) if job.fingerprint else NOTHING

    @admin.display(description=_("note on such failures"))
    def failure_note(self, job: ShownJob) -> str:
        """What JobAdmin.get_object() has found."""
        return getattr(job, "failure_note", NOTHING)

    @admin.display(description=_("group"))
    def group(self, job: ShownJob) -> str:
        """What JobAdmin.get_object() has found."""
        return getattr(job, "membership", None) or NOTHING

    @admin.display(description=_("progress"))
    def progress_text(self, job: ShownJob) -> str:
        """The last progress report, such as "3 / 10 (30 %)"."""
        found = read_progress(job.progress)
        return NOTHING if found is None else plain(mask_text(str(found)))

    @admin.display(description=_("what happens next"))
    def next(self, job: ShownJob) -> str:
        return what_next(job)

    @admin.display(description=_("history of failed attempts"))
    def attempts_table(self, job: ShownJob) -> str:
        """The newest ATTEMPTS_SHOWN attempts, newest first, each with its error and log in a part that opens."""
        rows = JobAttempt.objects.using(load().database).filter(job_id=job.pk).order_by("-id").defer("error")
        body = format_html_join(
            "", _ATTEMPT_ROW, map(_cells, rows.annotate(tail=Right("error", ATTEMPT_CHARS))[:ATTEMPTS_SHOWN])
        )
        zone = {"zone": timezone.get_current_timezone_name()}
        times = (gettext("started (%(zone)s)") % zone, gettext("ended (%(zone)s)") % zone)
        titles = (gettext("no."), *times, gettext("worker"), gettext("cause"), gettext("error"))
        head = format_html_join("", '<th scope="col">{}</th>', ((title,) for title in titles))
        table = '<table class="jobqueue-attempts" id="attempts"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>'
        return format_html(table, head, body) if body else NOTHING


def _handler() -> str:
    return gettext("(handler)")


def _when(job: ShownJob) -> str:
    """The time to or since the instant that matters in this state: due, start of the run, or end of the job."""
    if job.status == Job.Status.READY:
        instant = job.run_at
    elif job.status == Job.Status.PROCESSING:
        instant = job.last_started_at or job.locked_at
    else:
        instant = job.finished_at or job.updated_at
    return hint(relative(instant, job.now), moment(instant, job.now))


def _lease(job: ShownJob) -> str:
    if job.lock_until < job.now:
        return gettext("lease ended %(time)s") % {"time": relative(job.lock_until, job.now)}
    return gettext("%(time)s left") % {"time": span((job.lock_until - job.now).total_seconds())}


def _note(job: ShownJob) -> str:
    """Why the job waits, how far it has come, or the last line of the last error."""
    if job.status == Job.Status.READY and job.wait_reason and job.wait_reason != SCHEDULED:
        words = reason_in_words(job.wait_reason, job.gate)
        return _cut(short_class(words), words)
    if job.status == Job.Status.PROCESSING and (found := read_progress(job.progress)):
        return plain(mask_text(str(found)), NOTE_CHARS)
    text = mask_tail(job.error_tail or "", ERROR_TAIL_CHARS)
    return _cut(error_note(text), mask_text(text).strip()) if job.status != Job.Status.DONE else ""


def _cut(text: str, whole: str) -> str:
    """The beginning of `text`, with more of `whole` as its hint."""
    return hint(plain(text, NOTE_CHARS), plain(whole, HINT_CHARS)) if text else ""


def _cells(attempt: JobAttempt) -> tuple[object, ...]:
    tail = mask_tail(attempt.tail or "", ATTEMPT_CHARS)  # type: ignore[attr-defined]
    log = (
        format_html("<p>{}</p>{}", gettext("Log lines (times in UTC)"), secretless(attempt.log)) if attempt.log else ""
    )
    return (
        attempt.attempt,
        NOTHING if attempt.started_at is None else stamp(attempt.started_at),
        stamp(attempt.ended_at),
        plain(attempt.worker or NOTHING),
        (CAUSES | REQUESTED).get(attempt.cause, plain(attempt.cause)),
        plain(error_note(tail), 300) or NOTHING,
        format_html("{}{}", secretless(tail), log),
    )
