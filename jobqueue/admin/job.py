"""The list of jobs and the page of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin import actions
from jobqueue.admin.actions import BUTTONS
from jobqueue.admin.columns import JobColumns
from jobqueue.admin.filters import CauseFilter, QueueFilter, StateFilter
from jobqueue.admin.formatting import short_task
from jobqueue.admin.job_states import LABELS, STATE_OF, VERBS, state_of
from jobqueue.admin.verb_admin import VerbAdmin, needs
from jobqueue.conf import load
from jobqueue.models import Job
from jobqueue.transitions.claiming.candidates import queue_names

if TYPE_CHECKING:
    from jobqueue.admin.job_states import ShownJob

#: queues in which a dedupe key is searched; each costs an index seek
QUEUES_SEARCHED = 1000
_STATE = ("state", "next", "queue_name", "task_name")


@admin.register(Job)
class JobAdmin(JobColumns, VerbAdmin):
    """Jobs; the list does not read payloads, results and whole errors."""

    list_display = ("id", "state", "queue_name", "kind", "priority", "when", "attempt_of", "worker", "note")
    list_defer = ("payload", "result", "last_error")
    list_filter = (StateFilter, QueueFilter, CauseFilter)
    actions = actions.ALL
    search_fields = ("id",)
    search_help_text = _("Exact job id or dedupe key")
    fieldsets = (
        (None, {"fields": (*_STATE, "priority", "attempt_of", "progress_text", "dedupe", "order_key", "reason")}),
        (_("Failure"), {"fields": ("cause_word", "error_text", "attempts_table")}),
        (_("Times"), {"fields": ("created", "due_at", "expires", "started", "finished", "updated")}),
        (_("Lease"), {"fields": ("held_by", "leased_at", "leased_until", "ran_by")}),
        (_("Internals"), {"classes": ("collapse",), "fields": ("fence", "gate", "epoch", "crashes", "options_json")}),
    )
    content = (_("Payload and result"), {"fields": ("payload_json", "result_json")})
    content_columns = ("payload", "result")
    button_labels = BUTTONS
    state_words = {status.name: LABELS[state] for status, state in STATE_OF.items()}
    has_cancel_permission, has_release_permission = needs("cancel_job"), needs("release_job")

    def verbs_for(self, row: ShownJob) -> tuple[str, ...]:
        return VERBS[state_of(row)]

    def label_of(self, row: Job) -> str:
        return short_task(row.task) if row.task else row.queue

    def states_of(self, rows: QuerySet[Job]) -> list[tuple[int, str]]:
        return [(pk, Job.Status(status).name) for pk, status in rows.values_list("pk", "status")]

    def with_key(self, request: HttpRequest, rows: QuerySet[Job], key: bytes) -> QuerySet[Job]:
        """The jobs with this dedupe key: an index seek in each queue."""
        return rows.filter(queue__in=self._queues_to_search(request), dedupe_key=key)

    def _queues_to_search(self, request: HttpRequest) -> list[str]:
        chosen = request.GET.get(QueueFilter.parameter_name)
        if chosen is not None:
            return [] if "\x00" in chosen else [chosen]
        names = queue_names(using=load().database, limit=QUEUES_SEARCHED + 1)
        if len(names) > QUEUES_SEARCHED:
            text = gettext("Only the first %(n)d queues were searched; choose a queue to search another one.")
            messages.warning(request, text % {"n": QUEUES_SEARCHED})
        return names[:QUEUES_SEARCHED]
