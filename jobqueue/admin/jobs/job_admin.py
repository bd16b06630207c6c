"""The list of jobs: its columns, the rows of a page, how far it has looked, and the action that deletes jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs import actions
from jobqueue.admin.jobs.actions import BUTTONS
from jobqueue.admin.jobs.editing import edit_page
from jobqueue.admin.jobs.filters import FILTERS, NAMES, SEARCH, Selection, chosen, controls, selection_of
from jobqueue.admin.jobs.finding import Found, find
from jobqueue.admin.jobs.page import job_page, label_of
from jobqueue.admin.jobs.page_fields import title_of
from jobqueue.admin.jobs.states import ENDED, LABELS, STATE_OF, ShownJob, state_label, state_of, verbs_of
from jobqueue.admin.jobs.tabs import Tab, tabs
from jobqueue.admin.page.addresses import address_of
from jobqueue.admin.page.formatting import (
    NOTHING,
    TAIL_CHARS,
    StrOrPromise,
    ago,
    badge,
    error_line,
    hint,
    moment,
    number,
    plain,
    relative,
    short_class,
    short_worker,
    span,
    stacked,
    stamp,
    task_cell,
)
from jobqueue.admin.page.keyset import Page
from jobqueue.admin.page.verb_admin import ACTION_MAX, VerbAdmin, VerbList, apply, confirmation, needs
from jobqueue.conf import load
from jobqueue.context.progress import read_progress
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import StatementTimeout
from jobqueue.explain.explanation import reason_in_words
from jobqueue.maintenance.worker_rows import is_any_alive
from jobqueue.masking import mask_tail
from jobqueue.models import Job
from jobqueue.ordering import SCHEDULED
from jobqueue.retention.deletion import delete_job

#: how long each of the statements that find the jobs of a page may take
SECONDS = 3.0
NOTE_CHARS, HINT_CHARS = 120, 500
_ENDED = tuple(status.name for status in ENDED)
_DELETED = ngettext_lazy("%(n)d job was deleted.", "%(n)d jobs were deleted.", "n")


_BULK_PERMISSIONS = ("retry_job", "cancel_job", "discard_job", "release_job", "prune_jobs")


def bulk_address(request: HttpRequest) -> str:
    """The page that applies a verb to all jobs that match these filters; "" for users who may do nothing."""
    if not any(request.user.has_perm(f"jobqueue.{name}") for name in _BULK_PERMISSIONS):
        return ""
    return address_of("auditevent_new", **chosen(request))


class JobList(VerbList):
    """The list of jobs; says above it if jobs wait while no worker runs."""

    def read_page(self, request: HttpRequest) -> Page:
        wanted, using = selection_of(request), load().database
        keyset = self.keyset(request)
        cursor = None if self.cursor is None else keyset.read(self.cursor)
        self.page_note, self.result_count = "", 0
        try:
            with time_limit(SECONDS, using=using):
                found = find(wanted, cursor, self.list_per_page, using)
                # By their keys alone: no plan can take a condition for a better way to these rows.
                shown = self.shown(self.root_queryset.filter(pk__in=found.ids))
                rows: list[Any] = list(shown[: self.list_per_page])
        except StatementTimeout:
            text = gettext("Reading took longer than %(seconds)s s and was stopped. Choose a state, queue or age.")
            self.page_note = text % {"seconds": f"{SECONDS:g}"}
            return Page([])
        self.result_count, self.page_note = found.count, _looked_at(found, first=cursor is None)
        # Counted were those of the jobs that were looked at.
        self.is_at_least = bool(found.searched)
        rows.sort(key=lambda job: -job.pk)
        before = "" if found.before is None else keyset.sign([found.before], back=True)
        behind = "" if found.behind is None else keyset.sign([found.behind], back=False)
        return Page(rows, before, behind)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        jobs: Any = self.result_list
        if request.method != "GET":
            return
        settings = load()
        wanted = selection_of(request)
        shows = request.user.has_perm("jobqueue.view_payload")
        self.tabs = self._tabs(wanted)
        self.controls = [one for one in controls(wanted.chosen, load().database) if shows or one.name != "arg"]
        self.is_narrowed = bool(wanted.chosen.keys() - {"state"})
        if not any(state_of(job) == "ready" and not job.gate for job in jobs):
            return
        if not is_any_alive(settings.worker_silent_seconds, using=settings.database):
            text = gettext("No worker is running, so no job starts. Start one: %(command)s")
            messages.warning(request, text % {"command": "python manage.py runworker"})

    def _tabs(self, wanted: Selection) -> list[tuple[Tab, str, bool]]:
        """(tab, address, whether it is chosen) of each."""
        own = wanted.chosen.get("state", "")
        return [
            (tab, self.get_query_string({"state": tab.state or None}), tab.state == own)
            for tab in tabs(wanted, load().database)
        ]

    @property
    def search(self) -> str:
        """The parameter of the search."""
        return SEARCH


def _looked_at(found: Found, *, first: bool) -> str:
    if not found.searched:
        return ""
    if found.payloads:
        return _looked_through(found, first=first)
    if first:
        text = gettext("Looked at the newest %(n)s jobs; “Older” looks at more.")
    else:
        text = gettext("Looked at up to %(n)s jobs from here on; “Older” and “Newer” look at more.")
    return text % {"n": number(found.searched)}


def _looked_through(found: Found, *, first: bool) -> str:
    if found.behind is None:
        text = gettext("Looked through %(n)s jobs; no older one is left.")
    elif first:
        text = gettext("Looked through the newest %(n)s jobs, back to %(time)s; “Older” goes on.")
    else:
        text = gettext("Looked through %(n)s more jobs, back to %(time)s; “Older” goes on.")
    told = text % {"n": number(found.payloads), "time": stamp(found.since) if found.since else ""}
    return f"{told} {gettext('A tag finds its jobs at once, however many there are.')}"


def _when(job: ShownJob) -> str:
    """The time to or since the instant that matters in this state: due, start of the run, or end of the job."""
    if job.status == Job.Status.READY:
        instant = job.run_at
    elif job.status == Job.Status.PROCESSING:
        instant = job.last_started_at or job.locked_at
    else:
        instant = job.finished_at or job.updated_at
    return ago(instant, job.now)


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
    if job.status == Job.Status.DONE:
        return ""
    return _cut(error_line(job.error_tail), mask_tail(job.error_tail or "", TAIL_CHARS).strip())


def _cut(text: str, whole: str) -> str:
    """The beginning of `text`, with more of `whole` as its hint."""
    return hint(plain(text, NOTE_CHARS), plain(whole, HINT_CHARS)) if text else ""


@admin.action(description=_("Delete (ended jobs, with their attempts)"), permissions=["prune"])
def prune(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> HttpResponse | None:
    """Show how many of the chosen jobs have ended; delete these when that is confirmed."""
    if request.POST.get("confirm") == "yes":
        apply(model_admin, request, queryset, "delete", delete_job, _DELETED, allowed=_ENDED)
        return None
    rows = model_admin.states_of(queryset.order_by("pk")[: ACTION_MAX + 1])
    ids = [row_id for row_id, state in rows[:ACTION_MAX] if state in _ENDED]
    if not ids:
        model_admin.message_user(request, gettext("None of the chosen jobs has ended."), messages.WARNING)
        return None
    notes = [gettext("The jobs and their failed attempts are deleted for good. Nothing can bring them back.")]
    if others := len(rows[:ACTION_MAX]) - len(ids):
        stay = ngettext(
            "%(n)d chosen job has not ended, and stays.", "%(n)d chosen jobs have not ended, and stay.", others
        )
        notes.append(stay % {"n": others})
    if len(rows) > ACTION_MAX:
        more = gettext("Only the first %(n)d of the chosen jobs are looked at; repeat the action for the others.")
        notes.append(more % {"n": ACTION_MAX})
    count = ngettext("%(n)d ended job", "%(n)d ended jobs", len(ids)) % {"n": len(ids)}
    title = gettext("Delete %(what)s?") % {"what": count}
    return confirmation(model_admin, request, "prune", ids, title=title, submit=gettext("Delete"), notes=notes)


@admin.register(Job)
class JobAdmin(VerbAdmin):
    """Jobs; the list does not read payloads, results and whole errors."""

    list_display = ("id", "state", "task_and_note", "queue_and_priority", "when_and_worker", "duration", "attempt_of")
    list_defer = ("payload", "result", "last_error")
    list_filter = FILTERS
    list_class = JobList
    change_list_template = "admin/jobqueue/job_list.html"
    change_form_template = "admin/jobqueue/job_page.html"
    actions = (*actions.ALL, prune)
    search_fields = ("id",)
    search_help_text = _("A job id, dedupe key, tag, task, or ordering key of jobs that have not ended")
    content_columns = ("payload", "result")
    button_labels = BUTTONS
    state_words = {status.name: LABELS[state] for status, state in STATE_OF.items()}
    has_cancel_permission, has_release_permission = needs("cancel_job"), needs("release_job")
    has_prune_permission, has_edit_permission = needs("prune_jobs"), needs("edit_job")

    def get_urls(self) -> list[URLPattern]:
        """Also the page that changes a job that waits."""
        view = self.admin_site.admin_view(self.edit_view)
        return [path("<int:job_id>/edit/", view, name="jobqueue_job_edit"), *super().get_urls()]

    def edit_view(self, request: HttpRequest, job_id: int) -> HttpResponse:
        """See edit_page()."""
        job: Any = self.get_object(request, str(job_id))
        if not (self.has_view_permission(request, job) and self.has_edit_permission(request)):
            raise PermissionDenied
        if job is None:
            raise Http404
        return edit_page(self, request, job, shows_content=self.shows_content(request))

    def has_redrive_permission(self, request: HttpRequest) -> bool:
        """Whether this user may retry failed jobs, and the site has the page for it."""
        return request.user.has_perm("jobqueue.redrive_jobs") and bool(address_of("redrive_new"))

    def parts_of(self, row: Any, request: HttpRequest, permitted: Sequence[str]) -> dict[str, Any]:
        return job_page(row, request, permitted, shows_content=self.shows_content(request))

    def title_of(self, row: Any, name: str) -> str:
        return title_of(row)

    def verbs_for(self, row: ShownJob) -> tuple[str, ...]:
        return verbs_of(row)

    def button_label(self, name: str, row: ShownJob) -> StrOrPromise:
        return label_of(name, row)

    def unchanged(self, name: str, count: int) -> str:
        if name == "delete":
            return ngettext(
                "%(n)d was not deleted: later jobs of its ordering key wait for it, or its row is in use.",
                "%(n)d were not deleted: later jobs of their ordering keys wait for them, or their rows are in use.",
                count,
            ) % {"n": count}
        if name == "extend":
            return ngettext(
                "%(n)d was not changed: its lease has run out.",
                "%(n)d were not changed: their leases have run out.",
                count,
            ) % {"n": count}
        return ngettext(
            "%(n)d was not changed: another job has its dedupe key, or its state has just changed.",
            "%(n)d were not changed: other jobs have their dedupe keys, or their states have just changed.",
            count,
        ) % {"n": count}

    def states_of(self, rows: QuerySet[Job]) -> list[tuple[int, str]]:
        return [(pk, Job.Status(status).name) for pk, status in rows.values_list("pk", "status")]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list, with a link to the page for all that match; an address with empty filters is made short."""
        empty = [name for name in (*NAMES, SEARCH) if name != "state" and request.GET.get(name) == ""]
        if empty and request.method == "GET":
            query = request.GET.copy()
            for name in empty:
                del query[name]
            return HttpResponseRedirect(f"{request.path}?{query.urlencode()}" if query else request.path)
        return super().changelist_view(request, {"bulk_address": bulk_address(request)} | (extra_context or {}))

    def find(self, request: HttpRequest, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        found = selection_of(request).conditions.get(SEARCH)
        return rows if found is None else rows.filter(found)

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
        return stacked(task_cell(job.task or ""), _note(job))

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
