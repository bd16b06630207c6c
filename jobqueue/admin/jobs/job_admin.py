"""The list of jobs and the page of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.dead_letters.failure_note import note_block
from jobqueue.admin.jobs import actions
from jobqueue.admin.jobs.actions import BUTTONS
from jobqueue.admin.jobs.columns import JobColumns
from jobqueue.admin.jobs.filters import CauseFilter, FingerprintFilter, QueueFilter, StateFilter
from jobqueue.admin.jobs.prune import prune
from jobqueue.admin.jobs.states import LABELS, STATE_OF, state_of, verbs_of
from jobqueue.admin.page.formatting import short_task
from jobqueue.admin.page.verb_admin import VerbAdmin, VerbList, needs
from jobqueue.conf import load
from jobqueue.maintenance.worker_rows import is_any_alive
from jobqueue.models import Job
from jobqueue.ordering import SCHEDULED
from jobqueue.transitions.claiming.candidates import queue_names

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from jobqueue.admin.jobs.states import ShownJob

#: queues in which a dedupe key is searched; each costs an index seek
QUEUES_SEARCHED = 1000
#: fields of the page that are left out while their column is NULL
_OPTIONAL = {
    "progress_text": "progress",
    "dedupe": "dedupe_key",
    "order_key": "ordering_key",
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


class JobList(VerbList):
    """The list of jobs; says above it if jobs wait while no worker runs."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        jobs: Any = self.result_list
        if request.method != "GET" or not any(state_of(job) == "ready" and not job.gate for job in jobs):
            return
        settings = load()
        if not is_any_alive(settings.worker_silent_seconds, using=settings.database):
            text = gettext("No worker is running, so no job starts. Start one: %(command)s")
            messages.warning(request, text % {"command": "python manage.py runworker"})


@admin.register(Job)
class JobAdmin(JobColumns, VerbAdmin):
    """Jobs; the list does not read payloads, results and whole errors."""

    list_display = ("id", "state", "queue_and_priority", "task_and_note", "when_and_worker", "attempt_of")
    list_defer = ("payload", "result", "last_error")
    list_filter = (StateFilter, QueueFilter, CauseFilter, FingerprintFilter)
    actions = (*actions.ALL, prune)
    search_fields = ("id",)
    search_help_text = _("Exact job id or dedupe key")
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
        """The job, with the note on its failure as this user may see it."""
        found = super().get_object(request, object_id, from_field)
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
