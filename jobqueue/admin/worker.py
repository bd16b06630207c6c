"""Workers in the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.readonly import ReadOnlyAdmin
from jobqueue.conf import load
from jobqueue.durations import format_seconds
from jobqueue.models import Job, Worker


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Who runs, since when, on what."""

    list_display = ("id", "name", "state", "jobs_now", "queues", "concurrency", "heard_of", "started_at", "version")
    ordering = ("-id",)
    fields = (
        "name",
        "state",
        "host",
        "pid",
        "supervisor_pid",
        "boot_id",
        "queues",
        "concurrency",
        "version",
        "started_at",
        "heartbeat_at",
        "stopped_at",
        "stop_reason",
    )
    readonly_fields = fields

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
            return _t("stopped: %(reason)s") % {"reason": worker.stop_reason or "-"}
        silent = (worker.now - worker.heartbeat_at).total_seconds() > load().worker_silent_seconds
        return _t("silent") if silent else _t("running")

    @admin.display(description=_("jobs now"))
    def jobs_now(self, worker: Any) -> int:
        """Leases it holds."""
        return int(worker.jobs)

    @admin.display(description=_("last heartbeat"))
    def heard_of(self, worker: Any) -> str:
        """How long ago."""
        seconds = max(0.0, (worker.now - worker.heartbeat_at).total_seconds())
        return _t("%(time)s ago") % {"time": format_seconds(seconds)}
