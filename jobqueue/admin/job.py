"""Jobs in the admin."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from jobqueue.admin import actions
from jobqueue.admin.filters import CauseFilter, QueueFilter, StateFilter
from jobqueue.admin.readonly import ReadOnlyAdmin
from jobqueue.candidates import queue_names
from jobqueue.conf import load
from jobqueue.durations import format_seconds
from jobqueue.exceptions import PayloadError
from jobqueue.models import Job, JobAttempt
from jobqueue.names import KEY_BYTES

SHOWN_CHARS = 20_000


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """List and page of jobs."""

    list_display = ("id", "state", "queue", "kind", "priority", "due", "attempt_of", "lease", "worker", "error_line")
    list_filter = (StateFilter, QueueFilter, CauseFilter)
    ordering = ("-id",)
    actions = (actions.retry, actions.cancel, actions.discard, actions.release)
    search_fields = ("id",)
    search_help_text = _("Exact job id or dedupe key")
    fieldsets = (
        (None, {"fields": ("id", "state", "next", "queue", "kind", "priority", "attempt_of", "crashes")}),
        (_("Times (UTC)"), {"fields": ("created_at", "run_at", "last_started_at", "finished_at", "updated_at")}),
        (_("Lease"), {"fields": ("lease", "locked_by", "locked_at", "lock_until", "fence", "last_worker")}),
        (_("Keys"), {"fields": ("dedupe", "gate", "wait_reason", "epoch")}),
        (_("Failure"), {"fields": ("cause", "error_text", "attempts_table")}),
    )
    content = (_("Payload and result"), {"fields": ("payload_json", "result_json")})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Without payloads and results: a list of 50 rows must stay small."""
        return super().get_queryset(request).defer("payload", "result")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Payload and result for those who may see them."""
        if request.user.has_perm("jobqueue.view_payload"):
            return (*self.fieldsets, self.content)
        return self.fieldsets

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """All of them."""
        return [name for _title, options in self.get_fieldsets(request, obj) for name in options["fields"]]

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
        return queryset.filter(queue__in=list(queue_names(using=load().database)), dedupe_key=key), False

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

    def log_verb(self, request: HttpRequest, job_id: int, verb: str) -> None:
        """Who did what to which job, in Django's own history."""
        LogEntry.objects.create(
            user_id=int(request.user.pk or 0),
            content_type_id=ContentType.objects.get_for_model(Job, for_concrete_model=False).pk,
            object_id=str(job_id),
            object_repr=f"job {job_id}",
            action_flag=CHANGE,
            change_message=verb,
        )

    @admin.display(description=_("state"))
    def state(self, job: Any) -> str:
        """The status, with what the clock says about it."""
        if job.status == Job.Status.READY and job.run_at > job.now:
            return _t("scheduled")
        if job.status == Job.Status.PROCESSING and job.lock_until < job.now:
            return _t("lease ran out")
        return str(job.get_status_display())

    @admin.display(description=_("task or handler"))
    def kind(self, job: Any) -> str:
        """The task's path, or that the queue's handler runs it."""
        return job.task or _t("handler of %(queue)s") % {"queue": job.queue}

    @admin.display(description=_("due"))
    def due(self, job: Any) -> str:
        """How far run_at is, for waiting jobs."""
        return _ahead(job.run_at, job.now) if job.status == Job.Status.READY else "-"

    @admin.display(description=_("attempt"))
    def attempt_of(self, job: Any) -> str:
        """Attempts that ended in failure or loss, of how many."""
        return f"{job.attempts}/{job.max_attempts}"

    @admin.display(description=_("lease left"))
    def lease(self, job: Any) -> str:
        """Time until the lease runs out."""
        return _ahead(job.lock_until, job.now) if job.lock_until else "-"

    @admin.display(description=_("worker"))
    def worker(self, job: Any) -> str:
        """Who holds it, or who ran it last."""
        return job.locked_by or job.last_worker or "-"

    @admin.display(description=_("error"))
    def error_line(self, job: Any) -> str:
        """The last line of the last error."""
        lines = (job.last_error or "").strip().splitlines()
        return lines[-1][:120] if lines else "-"

    @admin.display(description=_("error"))
    def error_text(self, job: Any) -> str:
        """The whole last error."""
        return format_html('<pre class="jobqueue-text">{}</pre>', (job.last_error or "-")[:SHOWN_CHARS])

    @admin.display(description=_("dedupe key"))
    def dedupe(self, job: Any) -> str:
        """The key as text where it is text."""
        return job.dedupe_key.decode("utf-8", "backslashreplace") if job.dedupe_key else "-"

    @admin.display(description=_("payload"))
    def payload_json(self, job: Any) -> str:
        """Indented JSON."""
        return _pretty(job.payload)

    @admin.display(description=_("result"))
    def result_json(self, job: Any) -> str:
        """Indented JSON."""
        return _pretty(job.result)

    @admin.display(description=_("what happens next"))
    def next(self, job: Any) -> str:
        """One sentence."""
        return what_next(job)

    @admin.display(description=_("failed attempts"))
    def attempts_table(self, job: Any) -> str:
        """The history, newest first."""
        rows = JobAttempt.objects.using(load().database).filter(job_id=job.pk).order_by("-id")[:50]
        line = "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>"
        cells = (
            (a.attempt, f"{a.ended_at:%Y-%m-%d %H:%M:%S}", a.worker or "-", a.cause, _last_line(a.error)) for a in rows
        )
        body = format_html_join("", line, cells)
        head = format_html(
            "<tr><th>#</th><th>{}</th><th>{}</th><th>{}</th><th>{}</th></tr>",
            _t("ended"),
            _t("worker"),
            _t("cause"),
            _t("error"),
        )
        return format_html("<table>{}{}</table>", head, body) if body else "-"


def what_next(job: Any) -> str:
    """What will happen to a job if nobody interferes."""
    if job.status == Job.Status.READY:
        when = _t("as soon as a worker is free") if job.run_at <= job.now else _ahead(job.run_at, job.now)
        reason = f" ({job.wait_reason})" if job.wait_reason else ""
        return _t("A worker of queue %(queue)s will start it %(when)s%(reason)s.") % {
            "queue": job.queue,
            "when": when,
            "reason": reason,
        }
    if job.status == Job.Status.PROCESSING:
        if job.lock_until < job.now:
            return _t("Its lease has run out; the next reaper gives it back or, without attempts left, ends it.")
        return _t("Its worker renews the lease while it runs; without renewal it is given back %(when)s.") % {
            "when": _ahead(job.lock_until, job.now),
        }
    if job.status == Job.Status.FAILED:
        return _t("Nothing, until somebody retries or discards it.")
    return _t("Nothing: it has ended.")


def _ahead(instant: datetime, now: datetime) -> str:
    seconds = (instant - now).total_seconds()
    shown = format_seconds(abs(seconds))
    return _t("in %(time)s") % {"time": shown} if seconds > 0 else _t("%(time)s ago") % {"time": shown}


def _pretty(value: Any) -> str:
    text = str(value) if isinstance(value, PayloadError) else json.dumps(value, indent=2, ensure_ascii=False)
    more = "\n..." if len(text) > SHOWN_CHARS else ""
    return format_html('<pre class="jobqueue-text">{}</pre>', text[:SHOWN_CHARS] + more)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""
