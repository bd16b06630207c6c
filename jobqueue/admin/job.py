"""Jobs in the admin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import SuspiciousOperation
from django.db.models import QuerySet
from django.db.models.functions import Right
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin import actions
from jobqueue.admin.columns import JobColumns
from jobqueue.admin.filters import CauseFilter, QueueFilter, StateFilter
from jobqueue.admin.readonly import NewestFirst, ReadOnlyAdmin
from jobqueue.admin.states import VERBS, state_of
from jobqueue.candidates import queue_names
from jobqueue.conf import load
from jobqueue.models import Job
from jobqueue.names import KEY_BYTES

#: a dedupe key is looked up in so many queues; each costs an index seek
QUEUES_SEARCHED = 1000
ERROR_TAIL_CHARS = 500
LOG_BATCH = 100


class JobList(NewestFirst):
    """Without payloads, results and whole errors: a list of 50 rows must stay small."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """The columns of the list."""
        rows: Any = super().get_queryset(request, exclude_parameters).defer("payload", "result", "last_error")
        slim: QuerySet[Any] = rows.annotate(error_tail=Right("last_error", ERROR_TAIL_CHARS))
        return slim


@admin.register(Job)
class JobAdmin(JobColumns, ReadOnlyAdmin):
    """List and page of jobs."""

    list_display = ("id", "state", "queue_name", "kind", "priority", "when", "attempt_of", "worker", "note")
    list_filter = (StateFilter, QueueFilter, CauseFilter)
    actions = actions.ALL
    search_fields = ("id",)
    search_help_text = _("Exact job id or dedupe key")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "state",
                    "next",
                    "queue_name",
                    "kind",
                    "priority",
                    "attempt_of",
                    "progress_text",
                    "dedupe",
                    "order_key",
                    "reason",
                )
            },
        ),
        (_("Failure"), {"fields": ("cause_word", "error_text", "attempts_table")}),
        (_("Times"), {"fields": ("created", "due_at", "expires", "started", "finished", "updated")}),
        (_("Lease"), {"fields": ("held_by", "leased_at", "leased_until", "ran_by")}),
        (_("Internals"), {"classes": ("collapse",), "fields": ("fence", "gate", "epoch", "crashes", "options_json")}),
    )
    content = (_("Payload and result"), {"fields": ("payload_json", "result_json")})

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The list's class."""
        return JobList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Payload and result are not even read for those who may not see them."""
        rows: QuerySet[Job] = super().get_queryset(request)
        return rows if self.shows_content(request) else rows.defer("payload", "result")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Payload and result for those who may see them."""
        own: Any = self.fieldsets
        return (own[0], self.content, *own[1:]) if self.shows_content(request) else own

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """All of them."""
        return [name for _title, options in self.get_fieldsets(request, obj) for name in options["fields"]]

    def shows_content(self, request: HttpRequest) -> bool:
        """jobqueue.view_payload"""
        return request.user.has_perm("jobqueue.view_payload")

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """A number is a job id; anything else a dedupe key, looked up by index in every queue."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.isascii() and term.isdigit() and len(term) < 19:
            by_id = queryset.filter(pk=int(term))
            if by_id.exists():
                return by_id, False
        key = term.encode("utf-8", "replace")
        if len(key) > KEY_BYTES:
            return queryset.none(), False
        return queryset.filter(queue__in=self._queues_to_search(request), dedupe_key=key), False

    def _queues_to_search(self, request: HttpRequest) -> list[str]:
        chosen = request.GET.get(QueueFilter.parameter_name)
        if chosen is not None:
            return [] if "\x00" in chosen else [chosen]
        names = queue_names(using=load().database, limit=QUEUES_SEARCHED + 1)
        if len(names) > QUEUES_SEARCHED:
            text = gettext("Only the first %(n)d queues were searched; choose a queue to search another one.")
            messages.warning(request, text % {"n": QUEUES_SEARCHED})
        return names[:QUEUES_SEARCHED]

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """jobqueue.retry_job"""
        return request.user.has_perm("jobqueue.retry_job")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """jobqueue.cancel_job"""
        return request.user.has_perm("jobqueue.cancel_job")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """jobqueue.discard_job"""
        return request.user.has_perm("jobqueue.discard_job")

    def has_release_permission(self, request: HttpRequest) -> bool:
        """jobqueue.release_job"""
        return request.user.has_perm("jobqueue.release_job")

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """The page, with a button for each verb this user may use."""
        mine = {"permitted": list(self.get_actions(request))}
        return super().change_view(request, object_id, form_url, mine | (extra_context or {}))

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        """Offer the verbs that can change this job now; transitions decide again."""
        job = context.get("original")
        can = VERBS[state_of(job)] if job is not None else ()
        context["verbs"] = [(name, actions.SHORT[name]) for name in can if name in context["permitted"]]
        return super().render_change_form(request, context, *args, **kwargs)

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """Do it; from a job's page, go back there."""
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in chosen):
            raise SuspiciousOperation("a selected job id is not a number")
        response = super().response_action(request, queryset, *args, **kwargs)
        if response is not None and "jobqueue_page" in request.POST and len(chosen) == 1:
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:jobqueue_job_change", args=chosen))
        return response

    def log_verb(self, request: HttpRequest, changed: Sequence[tuple[int, str]]) -> None:
        """Who did what to which job and in which state it was, in Django's own history."""
        kind = ContentType.objects.get_for_model(Job, for_concrete_model=False).pk
        entries = [
            LogEntry(
                user_id=int(request.user.pk or 0),
                content_type_id=kind,
                object_id=str(job_id),
                object_repr=self.row_name(job_id),
                action_flag=CHANGE,
                change_message=what,
            )
            for job_id, what in changed
        ]
        LogEntry.objects.bulk_create(entries, batch_size=LOG_BATCH)
