"""The list of workers and the page of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Count, IntegerField, Model, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.apply import Changed, apply
from jobqueue.admin.page.formatting import hint, name_of, plain, relative, short_worker, stacked
from jobqueue.admin.page.readonly import ConditionFilter, NewestFirst
from jobqueue.admin.page.verb_admin import VerbAdmin, needs
from jobqueue.admin.workers import held
from jobqueue.admin.workers.page import worker_page
from jobqueue.admin.workers.stacks import ask
from jobqueue.admin.workers.states import state_badge, troubles
from jobqueue.conf import load
from jobqueue.maintenance.worker_list import held_jobs
from jobqueue.models import Job, Worker

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from jobqueue.admin.workers.states import ShownWorker

NAME_CHARS = 80


@admin.action(description=_("Ask for stacks (where its threads are)"), permissions=["ask"])
def ask_stacks(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Have workers write down where their threads are."""
    apply(model_admin, request, queryset, "ask for stacks", ask, _asked, allowed=("running",))


def _asked(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "%(n)d worker was asked; it answers within seconds.",
        "%(n)d workers were asked; they answer within seconds.",
        len(changed),
    ) % {"n": len(changed)}


class StoppedFilter(ConditionFilter):
    """Workers that have not stopped, and those that have."""

    labels = {"live": _("not stopped"), "stopped": _("stopped")}
    conditions = {"live": {"stopped_at__isnull": True}, "stopped": {"stopped_at__isnull": False}}


class WorkerList(NewestFirst):
    """The list, with some jobs of each worker that is shown."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: Any = list(self.result_list)
        if request.user.has_perm("jobqueue.view_job"):
            names = [worker.name for worker in rows if worker.jobs]
            found = held_jobs(names, limit=held.IN_LIST, using=load().database) if names else {}
            for worker in rows:
                worker.held = found.get(worker.name, ())
        self.result_list = rows

    @property
    def sections(self) -> list[tuple[StrOrPromise, str, bool]]:
        """(word, address, whether it is chosen) of all workers, and of those in each state."""
        name = StoppedFilter.parameter_name
        chosen = self.params.get(name)
        return [
            (word, self.get_query_string({name: state}), chosen == state)
            for state, word in ((None, _("all")), *StoppedFilter.labels.items())
        ]


@admin.register(Worker)
class WorkerAdmin(VerbAdmin):
    """Workers that run, and those that stopped not long ago. Nothing here stops one: its own host does."""

    list_display = ("worker_name", "state", "jobs_now", "served", "last_heartbeat", "since", "release")
    list_display_links = ("worker_name",)
    change_list_template = "admin/jobqueue/worker_list.html"
    list_filter = (StoppedFilter,)
    list_defer = ("stacks", "retries", "gates", "schedules")
    change_form_template = "admin/jobqueue/worker_page.html"
    actions = (ask_stacks,)
    search_fields = ()
    button_labels = {"ask_stacks": _("Ask for stacks")}
    state_words = {"running": _("running"), "stopped": _("stopped")}
    served, release = name_of(Worker, "queues"), name_of(Worker, "version")
    # A stack helps to decide whether to release a job, so the same permission shows it.
    has_ask_permission = needs("release_job")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """The workers, with the number of leases that each holds, counted by index ix_worker."""
        leases = Job.objects.filter(locked_by=OuterRef("name"), status=Job.Status.PROCESSING).order_by()
        count = leases.values("locked_by").annotate(n=Count("pk")).values("n")
        jobs = Coalesce(Subquery(count, output_field=IntegerField()), 0)
        rows: QuerySet[Model] = super().get_queryset(request).annotate(jobs=jobs)
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[NewestFirst]:
        return WorkerList

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """None: the page has parts of its own."""
        return []

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        worker = context.get("original")
        if worker is not None:
            context["page"] = worker_page(worker, request, may_ask="ask_stacks" in context["permitted"])
        return super().render_change_form(request, context, *args, **kwargs)

    def title_of(self, row: Any, name: str) -> str:
        return gettext("%(what)s (worker %(id)d)") % {"what": plain(short_worker(row.name), NAME_CHARS), "id": row.pk}

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """The list has no actions: the answer of a worker stands on its page. Django 6.1 passes `action_location`."""
        place = {} if action_location is None else {"action_location": action_location}
        match = request.resolver_match
        in_list = match is not None and str(match.url_name).endswith("_changelist")
        return {} if in_list and request.method != "POST" else super().get_actions(request, **place)

    def verbs_for(self, row: Worker) -> tuple[str, ...]:
        return () if row.stopped_at is not None else ("ask_stacks",)

    def states_of(self, rows: QuerySet[Worker]) -> list[tuple[int, str]]:
        found = rows.values_list("pk", "stopped_at")
        return [(pk, "running" if stopped is None else "stopped") for pk, stopped in found]

    @admin.display(description=_("name"))
    def worker_name(self, worker: ShownWorker) -> str:
        """Host and pid, with the whole name as a hint."""
        return hint(plain(short_worker(worker.name)), plain(worker.name))

    @admin.display(description=_("state"))
    def state(self, worker: ShownWorker) -> str:
        return stacked(state_badge(worker), ", ".join(troubles(worker)))

    @admin.display(description=_("jobs now"))
    def jobs_now(self, worker: ShownWorker) -> str:
        """How many of its threads are busy; below it some of the jobs, for those who may see jobs."""
        jobs = getattr(worker, "held", None)
        shown = held.some(jobs, worker.jobs, worker.now) if jobs else ""
        return stacked(held.busy(worker, linked=jobs is not None), shown)

    @admin.display(description=_("last heartbeat"))
    def last_heartbeat(self, worker: ShownWorker) -> str:
        return relative(worker.heartbeat_at, worker.now)

    @admin.display(description=_("started"))
    def since(self, worker: ShownWorker) -> str:
        return relative(worker.started_at, worker.now)
