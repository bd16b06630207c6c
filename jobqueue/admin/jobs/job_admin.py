"""The list of jobs and the page of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobqueue.admin.dead_letters.failure_note import note_block
from jobqueue.admin.jobs import actions
from jobqueue.admin.jobs.actions import BUTTONS
from jobqueue.admin.jobs.bulk_link import bulk_address
from jobqueue.admin.jobs.columns import JobColumns
from jobqueue.admin.jobs.controls import FILTERS
from jobqueue.admin.jobs.filters import NAMES, SEARCH, selection_of
from jobqueue.admin.jobs.job_list import JobList
from jobqueue.admin.jobs.membership import membership
from jobqueue.admin.jobs.prune import prune
from jobqueue.admin.jobs.states import LABELS, STATE_OF, state_of, verbs_of
from jobqueue.admin.page.formatting import short_task
from jobqueue.admin.page.verb_admin import VerbAdmin, needs
from jobqueue.models import Job
from jobqueue.ordering import SCHEDULED

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from jobqueue.admin.jobs.states import ShownJob

#: fields of the page that are left out while their column is NULL
_OPTIONAL = {
    "progress_text": "progress",
    "dedupe": "dedupe_key",
    "order_key": "ordering_key",
    "group": "membership",
    "dependency": "dependency",
    "reason": "wait_reason",
    "cause_word": "cause",
    "failure_kind": "fingerprint",
    "failure_note": "fingerprint",
    "error_text": "last_error",
    "attempts_table": "last_error",
    "expires": "expires_at",
    "started": "last_started_at",
    "finished": "finished_at",
    "held_by": "locked_by",
    "leased_at": "locked_at",
    "leased_until": "lock_until",
    "ran_by": "last_worker",
    "options_json": "options",
}
_STATE = ("state", "next", "queue_name", "task_name")


@admin.register(Job)
class JobAdmin(JobColumns, VerbAdmin):
    """Jobs; the list does not read payloads, results and whole errors."""

    list_display = ("id", "state", "task_and_note", "queue_and_priority", "when_and_worker", "duration", "attempt_of")
    list_defer = ("payload", "result", "last_error")
    list_filter = FILTERS
    change_list_template = "admin/jobqueue/job_list.html"
    actions = (*actions.ALL, prune)
    search_fields = ("id",)
    search_help_text = _("A job id, dedupe key, tag, task, or ordering key of jobs that have not ended")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    *_STATE,
                    "priority",
                    "attempt_of",
                    "progress_text",
                    "dedupe",
                    "order_key",
                    "group",
                    "dependency",
                    "reason",
                )
            },
        ),
        (_("Failure"), {"fields": ("cause_word", "failure_kind", "failure_note", "error_text", "attempts_table")}),
        (_("Times"), {"fields": ("created", "due_at", "expires", "started", "finished", "updated")}),
        (_("Lease"), {"fields": ("held_by", "leased_at", "leased_until", "ran_by")}),
        (_("Internals"), {"classes": ("collapse",), "fields": ("fence", "gate", "epoch", "crashes", "options_json")}),
    )
    content = (_("Payload and result"), {"fields": ("payload_json", "result_json")})
    content_columns = ("payload", "result")
    button_labels = BUTTONS
    state_words = {status.name: LABELS[state] for status, state in STATE_OF.items()}
    has_cancel_permission, has_release_permission = needs("cancel_job"), needs("release_job")
    has_redrive_permission, has_prune_permission = needs("redrive_jobs"), needs("prune_jobs")

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """The parts of the page, without fields that are empty for this job."""
        own = super().get_fieldsets(request, obj)
        if not isinstance(obj, Job):
            return own
        empty = {shown for shown, column in _OPTIONAL.items() if getattr(obj, column) in (None, SCHEDULED)}
        parts = [
            (title, {**options, "fields": tuple(name for name in options["fields"] if name not in empty)})
            for title, options in own
        ]
        return [(title, options) for title, options in parts if options["fields"]]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Model | None:
        """The job, with its group and the note on its failure as this user may see them."""
        found = super().get_object(request, object_id, from_field)
        if isinstance(found, Job):
            found.membership = membership(found, request) or None  # type: ignore[attr-defined]
        if isinstance(found, Job) and found.fingerprint:
            found.failure_note = note_block(found.fingerprint, request)  # type: ignore[attr-defined]
        return found

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[JobList]:
        return JobList

    def verbs_for(self, row: ShownJob) -> tuple[str, ...]:
        return verbs_of(row)

    def button_label(self, name: str, row: ShownJob) -> StrOrPromise:
        """A job that has not run yet is not retried."""
        first_run = name == "retry" and state_of(row) == "scheduled" and not row.attempts
        return _("Run now") if first_run else super().button_label(name, row)

    def unchanged(self, name: str, count: int) -> str:
        if name == "delete":
            return ngettext(
                "%(n)d was not deleted: later jobs of its ordering key wait for it, or its row is in use.",
                "%(n)d were not deleted: later jobs of their ordering keys wait for them, or their rows are in use.",
                count,
            ) % {"n": count}
        return ngettext(
            "%(n)d was not changed: another job has its dedupe key, or its state has just changed.",
            "%(n)d were not changed: other jobs have their dedupe keys, or their states have just changed.",
            count,
        ) % {"n": count}

    def label_of(self, row: Job) -> str:
        return short_task(row.task) if row.task else row.queue

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
