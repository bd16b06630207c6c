"""The list of workers and the page of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.db.models import Count, IntegerField, Model, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import NOTHING, badge, json_of, moment_of, name_of, plain, relative
from jobqueue.admin.page.readonly import Facts, ReadOnlyAdmin
from jobqueue.maintenance.worker_list import state_of
from jobqueue.models import Job, Worker


class WorkerFacts(Facts):
    """What pages read with a worker: also the number of jobs that it holds."""

    jobs: int


if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownWorker = WithAnnotations[Worker, WorkerFacts]


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Workers that run, and those that stopped not long ago."""

    list_display = ("worker_name", "state", "jobs_now", "concurrency", "served", "last_heartbeat", "since", "version")
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
        "retry_counts",
        "started",
        "heartbeat",
        "stopped",
        "reason",
    )
    readonly_fields = fields
    worker_name, host_name = name_of(Worker, "name"), name_of(Worker, "host")
    served, reason = name_of(Worker, "queues"), name_of(Worker, "stop_reason")
    started, stopped = moment_of(Worker, "started_at"), moment_of(Worker, "stopped_at")
    heartbeat, retry_counts = moment_of(Worker, "heartbeat_at"), json_of(Worker, "retries")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """The workers, with the number of leases that each holds, counted by index ix_worker."""
        held = Job.objects.filter(locked_by=OuterRef("name"), status=Job.Status.PROCESSING).order_by()
        count = held.values("locked_by").annotate(n=Count("pk")).values("n")
        jobs = Coalesce(Subquery(count, output_field=IntegerField()), 0)
        rows: QuerySet[Model] = super().get_queryset(request).defer("stacks").annotate(jobs=jobs)
        return rows

    def label_of(self, row: Worker) -> str:
        return str(row.name)

    @admin.display(description=_("state"))
    def state(self, worker: ShownWorker) -> str:
        """Whether the worker runs, sends no heartbeats, or has stopped, and why."""
        if worker.stopped_at is not None:
            return badge("done", gettext("stopped: %(reason)s") % {"reason": plain(worker.stop_reason or NOTHING)})
        silent = state_of(worker, worker.now) == "silent"
        return badge("expired", gettext("no heartbeat")) if silent else badge("running", gettext("running"))

    @admin.display(description=_("jobs now"))
    def jobs_now(self, worker: ShownWorker) -> int:
        return int(worker.jobs)

    @admin.display(description=_("last heartbeat"))
    def last_heartbeat(self, worker: ShownWorker) -> str:
        return relative(worker.heartbeat_at, worker.now)

    @admin.display(description=_("started"))
    def since(self, worker: ShownWorker) -> str:
        return relative(worker.started_at, worker.now)
