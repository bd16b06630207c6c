"""Jobs in the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.db.models.functions import Right
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin import actions
from jobqueue.admin.actions import SHORT
from jobqueue.admin.columns import JobColumns
from jobqueue.admin.filters import CauseFilter, QueueFilter, StateFilter
from jobqueue.admin.job_states import VERBS, state_of
from jobqueue.admin.readonly import NewestFirst
from jobqueue.admin.verb_admin import VerbAdmin
from jobqueue.conf import load
from jobqueue.models import Job
from jobqueue.transitions.claiming.candidates import queue_names
from jobqueue.validation import KEY_BYTES

#: a dedupe key is looked up in so many queues; each costs an index seek
QUEUES_SEARCHED = 1000
ERROR_TAIL_CHARS = 500


class JobList(NewestFirst):
    """Without payloads, results and whole errors: a list of 50 rows must stay small."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """The columns of the list."""
        rows: Any = super().get_queryset(request, exclude_parameters).defer("payload", "result", "last_error")
        slim: QuerySet[Any] = rows.annotate(error_tail=Right("last_error", ERROR_TAIL_CHARS))
        return slim


@admin.register(Job)
class JobAdmin(JobColumns, VerbAdmin):
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
    content_columns = ("payload", "result")
    short = SHORT

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The list's class."""
        return JobList

    def verbs_for(self, row: Any) -> tuple[str, ...]:
        """By the state of the job."""
        return VERBS[state_of(row)]

    def words_of(self, rows: QuerySet[Any]) -> list[tuple[int, str]]:
        """Each with its status."""
        return [(pk, Job.Status(status).name) for pk, status in rows.values_list("pk", "status")]

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

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """jobqueue.cancel_job"""
        return request.user.has_perm("jobqueue.cancel_job")

    def has_release_permission(self, request: HttpRequest) -> bool:
        """jobqueue.release_job"""
        return request.user.has_perm("jobqueue.release_job")
