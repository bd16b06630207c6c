"""The list of jobs and the page of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobqueue.admin.jobs import actions
from jobqueue.admin.jobs.actions import BUTTONS
from jobqueue.admin.jobs.bulk_link import bulk_address
from jobqueue.admin.jobs.buttons import label_of
from jobqueue.admin.jobs.columns import JobColumns
from jobqueue.admin.jobs.controls import FILTERS
from jobqueue.admin.jobs.filters import NAMES, SEARCH, selection_of
from jobqueue.admin.jobs.job_list import JobList
from jobqueue.admin.jobs.page import job_page
from jobqueue.admin.jobs.page_fields import title_of
from jobqueue.admin.jobs.prune import prune
from jobqueue.admin.jobs.states import LABELS, STATE_OF, verbs_of
from jobqueue.admin.page.addresses import address_of
from jobqueue.admin.page.verb_admin import VerbAdmin, needs
from jobqueue.models import Job

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from jobqueue.admin.jobs.states import ShownJob


@admin.register(Job)
class JobAdmin(JobColumns, VerbAdmin):
    """Jobs; the list does not read payloads, results and whole errors."""

    list_display = ("id", "state", "task_and_note", "queue_and_priority", "when_and_worker", "duration", "attempt_of")
    list_defer = ("payload", "result", "last_error")
    list_filter = FILTERS
    change_list_template = "admin/jobqueue/job_list.html"
    change_form_template = "admin/jobqueue/job_page.html"
    actions = (*actions.ALL, prune)
    search_fields = ("id",)
    search_help_text = _("A job id, dedupe key, tag, task, or ordering key of jobs that have not ended")
    content_columns = ("payload", "result")
    button_labels = BUTTONS
    state_words = {status.name: LABELS[state] for status, state in STATE_OF.items()}
    has_cancel_permission, has_release_permission = needs("cancel_job"), needs("release_job")
    has_prune_permission = needs("prune_jobs")

    def has_redrive_permission(self, request: HttpRequest) -> bool:
        """Whether this user may retry failed jobs, and the site has the page for it."""
        return request.user.has_perm("jobqueue.redrive_jobs") and bool(address_of("redrive_new"))

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """None: the page has parts of its own."""
        return []

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the parts of the page that this user may see, with the buttons that he or she may use."""
        job = context.get("original")
        if job is not None:
            shows_content = self.shows_content(request)
            context["page"] = job_page(job, request, context["permitted"], shows_content=shows_content)
        return super().render_change_form(request, context, *args, **kwargs)

    def title_of(self, row: Any, name: str) -> str:
        return title_of(row)

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[JobList]:
        return JobList

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

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        found = selection_of(request).conditions.get(SEARCH)
        return (queryset if found is None else queryset.filter(found)), False
