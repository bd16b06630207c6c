"""The computed columns of the list of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.states import state_label, state_of
from jobqueue.admin.page.formatting import (
    NOTHING,
    badge,
    error_note,
    hint,
    moment,
    plain,
    relative,
    short_class,
    short_task,
    short_worker,
    span,
    stacked,
)
from jobqueue.admin.page.verb_admin import ERROR_TAIL_CHARS
from jobqueue.context.progress import read_progress
from jobqueue.explain.words import reason_in_words
from jobqueue.masking import mask_tail, mask_text
from jobqueue.models import Job
from jobqueue.ordering import SCHEDULED

if TYPE_CHECKING:
    from jobqueue.admin.jobs.states import ShownJob

NOTE_CHARS, HINT_CHARS = 120, 500


class JobColumns:
    """A mixin with one method or attribute per column."""

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
        return plain(found, NOTE_CHARS)
    text = mask_tail(job.error_tail or "", ERROR_TAIL_CHARS)
    return _cut(error_note(text), mask_text(text).strip()) if job.status != Job.Status.DONE else ""


def _cut(text: str, whole: str) -> str:
    """The beginning of `text`, with more of `whole` as its hint."""
    return hint(plain(text, NOTE_CHARS), plain(whole, HINT_CHARS)) if text else ""
