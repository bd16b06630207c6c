"""Workers in the admin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.formatting import NOTHING, badge, label, moment, plain, relative
from jobqueue.admin.readonly import ReadOnlyAdmin
from jobqueue.conf import load
from jobqueue.maintenance.worker_rows import HEARTBEATS_MISSED
from jobqueue.models import Job, Worker


def _name(field: str) -> Callable[[Any, Any], str]:
    @admin.display(description=label(Worker, field))
    def show(self: Any, worker: Any) -> str:
        return plain(getattr(worker, field) or NOTHING)

    return show


def _moment(field: str) -> Callable[[Any, Any], str]:
    @admin.display(description=label(Worker, field))
    def show(self: Any, worker: Any) -> str:
        return moment(getattr(worker, field), worker.now)

    return show


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Who runs, since when, on what."""

    list_display = ("worker_name", "state", "jobs_now", "concurrency", "served", "heard", "since", "version")
    list_display_links = ("worker_name",)
    fields = (
        "worker_name",
        "state",
        "jobs_now",
        "host_name",
        "pid",
        "supervisor_pid",
        "boot_id",
        "served",
        "concurrency",
        "version",
        "started",
        "heard_at",
        "stopped",
        "reason",
    )
    readonly_fields = fields
    worker_name, host_name, served, reason = _name("name"), _name("host"), _name("queues"), _name("stop_reason")
    started, heard_at, stopped = _moment("started_at"), _moment("heartbeat_at"), _moment("stopped_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        """With the number of leases each worker holds, by index ix_worker."""
        held = Job.objects.filter(locked_by=OuterRef("name"), status=Job.Status.PROCESSING).order_by()
        count = held.values("locked_by").annotate(n=Count("pk")).values("n")
        jobs = Coalesce(Subquery(count, output_field=IntegerField()), 0)
        rows: QuerySet[Worker] = super().get_queryset(request).annotate(jobs=jobs)
        return rows

    @admin.display(description=_("state"))
    def state(self, worker: Any) -> str:
        """running, silent or why it stopped."""
        if worker.stopped_at is not None:
            return badge("done", gettext("stopped: %(reason)s") % {"reason": plain(worker.stop_reason or NOTHING)})
        patience = max(load().worker_silent_seconds, HEARTBEATS_MISSED * (worker.heartbeat_seconds or 0.0))
        silent = (worker.now - worker.heartbeat_at).total_seconds() > patience
        return badge("expired", gettext("silent")) if silent else badge("running", gettext("running"))

    @admin.display(description=_("jobs now"))
    def jobs_now(self, worker: Any) -> int:
        """Leases it holds."""
        return int(worker.jobs)

    @admin.display(description=_("last heartbeat"))
    def heard(self, worker: Any) -> str:
        """How long ago."""
        return relative(worker.heartbeat_at, worker.now)

    @admin.display(description=_("started"))
    def since(self, worker: Any) -> str:
        """How long ago."""
        return relative(worker.started_at, worker.now)
