"""The list of workers with the jobs they hold, and the page of a worker with the stacks of its threads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.db.models import Count, IntegerField, Model, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.addresses import address_of, link, list_address
from jobqueue.admin.page.formatting import (
    NOTHING,
    StrOrPromise,
    ago,
    badge,
    block,
    hint,
    job_link,
    label,
    moment,
    name_of,
    number,
    plain,
    pretty,
    relative,
    short_task,
    short_worker,
    span,
    stacked,
    task_cell,
)
from jobqueue.admin.page.history import recent
from jobqueue.admin.page.readonly import ConditionFilter, Facts, NewestFirst
from jobqueue.admin.page.tables import Column, Fact, Table, facts, table_of
from jobqueue.admin.page.verb_admin import Button, VerbAdmin, apply, needs
from jobqueue.conf import load
from jobqueue.explain.stacks import Standing, report_of
from jobqueue.maintenance import worker_rows
from jobqueue.maintenance.worker_rows import HeldJob, held_jobs, state_of
from jobqueue.models import Job, Worker


class WorkerFacts(Facts):
    """What pages read with a worker: also the number of jobs that it holds."""

    jobs: int


if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownWorker = WithAnnotations[Worker, WorkerFacts]
else:
    ShownWorker = Worker

_SHORT: dict[str, StrOrPromise] = {
    "memory": _("short of memory"),
    "descriptors": _("short of file descriptors"),
    "disk": _("short of disk space"),
    "commit": _("the database commits slowly"),
    "stalled": _("claims nothing although jobs are due"),
}
#: jobs of each worker in the list, and on the page of one
IN_LIST, ON_PAGE = 3, 100
#: jobs of a place in a stack
JOBS_SHOWN = 10
REASON_CHARS, TITLE_CHARS, TASK_CHARS = 200, 80, 60
#: a larger difference to the clock of the database is shown
CLOCK_SECONDS = 0.5


def state_badge(worker: ShownWorker) -> str:
    """Whether the worker runs, sends no heartbeats, or has stopped, and why."""
    if worker.stopped_at is not None:
        reason = {"reason": plain(worker.stop_reason or NOTHING, REASON_CHARS)}
        return badge("canceled", gettext("stopped: %(reason)s") % reason)
    silent = state_of(worker, worker.now) == "silent"
    return badge("expired", gettext("no heartbeat")) if silent else badge("running", gettext("running"))


def troubles(worker: ShownWorker) -> list[str]:
    """What its monitor has found to be wrong with it."""
    # A worker of another release may have written it.
    found = worker.troubles if isinstance(worker.troubles, dict) else {}
    return [str(word) for name, word in _SHORT.items() if name in found]


def clock(worker: ShownWorker) -> str:
    """How far the clock of its host is from the database's; "" if that does not matter."""
    ahead = worker.clock_ahead_seconds or 0.0
    if abs(ahead) < CLOCK_SECONDS:
        return ""
    words = gettext("%(time)s ahead of the database") if ahead > 0 else gettext("%(time)s behind the database")
    return words % {"time": span(ahead)}


def memory_of(worker: ShownWorker) -> str:
    """Its resident memory, such as "86.2 MB"; "" if it is not known."""
    return str(filesizeformat(worker.rss_bytes)) if worker.rss_bytes else ""


def what_next(worker: ShownWorker) -> str:
    """A sentence about the jobs of a silent or stopped worker: what happens to them next. "" for one that runs."""
    if worker.stopped_at is not None:
        return gettext("It has stopped. Its jobs run again when their leases have ended.") if worker.jobs else ""
    if state_of(worker, worker.now) != "silent":
        return ""
    facts = {"time": span((worker.now - worker.heartbeat_at).total_seconds())}
    return gettext("No heartbeat for %(time)s. If it is dead, its jobs run again when their leases have ended.") % facts


_COLUMNS = (Column(_("Job")), Column(_("Task")), Column(_("Queue")), Column(_("Held since")), Column(_("Lease ends")))


def busy(worker: ShownWorker, *, linked: bool) -> str:
    """Such as "3 of 8", `linked` to the list of these jobs."""
    text = gettext("%(n)s of %(most)s") % {"n": number(worker.jobs), "most": number(worker.concurrency)}
    if not linked or not worker.jobs:
        return text
    return link(list_address("job", state="running", worker=worker.name), text)


def some(held: Sequence[HeldJob], count: int, now: datetime) -> str:
    """The first IN_LIST jobs as lines: id, task, and since when; and how many of `count` there are besides."""
    lines: list[str] = [
        format_html(
            '<span title="{}">{} {}, {}</span>',
            moment(job.since, now),
            job_link(job.id),
            plain(short_task(job.task) if job.task else job.queue, TASK_CHARS),
            NOTHING if job.since is None else span(max(0.0, (now - job.since).total_seconds())),
        )
        for job in held[:IN_LIST]
    ]
    if count > len(lines) > 0:
        lines.append(gettext("and %(n)s more") % {"n": number(count - len(lines))})
    return format_html_join("", '<span class="jobqueue-part">{}</span>', ((line,) for line in lines))


def table(held: Sequence[HeldJob], now: datetime) -> Table:
    """The first ON_PAGE jobs."""
    rows = [
        (
            job_link(job.id),
            task_cell(job.task or "", TASK_CHARS),
            plain(job.queue),
            ago(job.since, now),
            ago(job.lease_until, now),
        )
        for job in held[:ON_PAGE]
    ]
    return table_of(_COLUMNS, rows)


class Place(NamedTuple):
    """Threads that stand at the same place: how many, of which jobs, since when, and their stack."""

    words: str
    jobs: str
    since: str
    stack: str


class Stacks(NamedTuple):
    """`said`: when it was asked or has answered."""

    said: list[str]
    places: list[Place]


def ask(row_id: int, *, using: str) -> bool:
    """Ask the worker of this row for its stacks. False if it has stopped."""
    rows = Worker.objects.using(using).filter(pk=row_id, stopped_at__isnull=True)
    name = rows.values_list("name", flat=True).first()
    if name is None:
        return False
    worker_rows.ask_stacks([name], using=using)
    return True


def stacks_of(worker: ShownWorker) -> Stacks | None:
    """The last answer of a worker; None if it was never asked."""
    said, places = [], list[Place]()
    if worker.stacks_asked_at is not None:
        asked = {"time": relative(worker.stacks_asked_at, worker.now)}
        said.append(gettext("Asked %(time)s. It answers within seconds: load the page again.") % asked)
    if worker.stacks_at is not None and isinstance(worker.stacks, dict):
        age = max(0.0, (worker.now - worker.stacks_at).total_seconds())
        report = report_of(worker.name, age, worker.stacks)
        answered = {"time": relative(worker.stacks_at, worker.now)}
        if report.answered:
            said.append(gettext("Answered %(time)s.") % answered)
        else:
            said.append(gettext("Looked %(time)s: it ran no Python code, and could not answer.") % answered)
        places = [_place(one) for one in report.standing]
    return Stacks(said, places) if said else None


def _place(one: Standing) -> Place:
    words = ngettext("%(n)d thread", "%(n)d threads", one.threads) % {"n": one.threads}
    ids = [*one.jobs]
    links = format_html_join(", ", "{}", ((job_link(job_id),) for job_id in ids[:JOBS_SHOWN]))
    more = gettext("and %(n)s more") % {"n": len(ids) - JOBS_SHOWN} if len(ids) > JOBS_SHOWN else ""
    since = gettext("at the same place for %(time)s") % {"time": span(one.unchanged_seconds)} if one.looks > 1 else ""
    text = "\n".join(plain(line.text) for line in one.stack)
    return Place(words, format_html_join(" ", "{}", ((part,) for part in (links, more) if part)), since, block(text))


_ASK = Button(
    "ask_stacks",
    _("Ask for stacks"),
    _("Shows which line of code each of its threads is at. Its jobs go on meanwhile."),
)


def worker_page(worker: ShownWorker, request: HttpRequest, *, may_ask: bool) -> dict[str, Any]:
    """The parts of the page for this user; an empty one is left out, and the jobs for those who may not see jobs."""
    may_see_jobs = request.user.has_perm("jobqueue.view_job")
    jobs = held_jobs([worker.name], limit=ON_PAGE, using=load().database) if may_see_jobs and worker.jobs else {}
    shown = jobs.get(worker.name, [])
    next_ = what_next(worker)
    return {
        "state": state_badge(worker),
        "line": _line(worker, linked=may_see_jobs),
        "next": next_,
        "troubles": troubles(worker),
        # The address of the page that releases all of its jobs.
        "release": _release_page(worker, request) if next_ and worker.jobs else "",
        "jobs": table(shown, worker.now) if shown else None,
        "no_jobs": gettext("None.") if not worker.jobs else gettext("You may not see jobs."),
        "more": _more(worker) if shown and worker.jobs > len(shown) else "",
        "buttons": [_ASK] if may_ask and worker.stopped_at is None else [],
        "stacks": stacks_of(worker) if may_ask else None,
        "details": _details(worker),
        "internals": _internals(worker),
        "history": recent(Worker, worker.pk),
    }


def _line(worker: ShownWorker, *, linked: bool) -> list[str]:
    """Short facts for the line of the state."""
    runs = worker.stopped_at is None
    ran = {"time": span(((worker.stopped_at or worker.now) - worker.started_at).total_seconds())}
    return [
        format_html(gettext("{} threads busy"), busy(worker, linked=linked)),
        gettext("last heartbeat %(time)s") % {"time": relative(worker.heartbeat_at, worker.now)},
        (gettext("running for %(time)s") if runs else gettext("ran %(time)s")) % ran,
    ]


def _release_page(worker: ShownWorker, request: HttpRequest) -> str:
    """The page of a verb on many jobs, filled with those of this worker; "" for those who may not release jobs."""
    if not all(map(request.user.has_perm, ("jobqueue.release_job", "jobqueue.view_job"))):
        return ""
    return address_of("auditevent_new", worker=worker.name, verb="release")


def _more(worker: ShownWorker) -> str:
    words = {"n": number(ON_PAGE), "all": number(worker.jobs)}
    address = list_address("job", state="running", worker=worker.name)
    text = gettext("The first %(n)s of %(all)s jobs.") % words
    return format_html("{} {}", text, link(address, gettext("All of them")))


def _details(worker: ShownWorker) -> list[Fact]:
    every = worker.heartbeat_seconds
    heartbeat = moment(worker.heartbeat_at, worker.now)
    if every:
        heartbeat += ", " + gettext("one every %(time)s") % {"time": span(every)}
    return facts(
        (label(Worker, "name"), plain(worker.name)),
        (label(Worker, "queues"), plain(worker.queues)),
        (label(Worker, "host"), plain(worker.host)),
        (label(Worker, "pid"), worker.pid),
        (label(Worker, "concurrency"), worker.concurrency),
        (label(Worker, "version"), plain(worker.version)),
        (label(Worker, "started_at"), moment(worker.started_at, worker.now)),
        (label(Worker, "heartbeat_at"), heartbeat),
        (label(Worker, "rss_bytes"), memory_of(worker)),
        (_("Clock of the host"), clock(worker)),
        (label(Worker, "stopped_at"), moment(worker.stopped_at, worker.now)),
        (label(Worker, "stop_reason"), plain(worker.stop_reason or "")),
    )


def _internals(worker: ShownWorker) -> list[Fact]:
    return facts(
        (label(Worker, "supervisor_pid"), worker.supervisor_pid),
        (label(Worker, "boot_id"), plain(worker.boot_id)),
        (label(Worker, "retries"), pretty(worker.retries)),
    )


_ASKED = ngettext_lazy(
    "%(n)d worker was asked; it answers within seconds.", "%(n)d workers were asked; they answer within seconds.", "n"
)


@admin.action(description=_("Ask for stacks (where its threads are)"), permissions=["ask"])
def ask_stacks(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Have workers write down where their threads are."""
    apply(model_admin, request, queryset, "ask for stacks", ask, _ASKED, allowed=("running",))


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
            found = held_jobs(names, limit=IN_LIST, using=load().database) if names else {}
            for worker in rows:
                worker.held = found.get(worker.name, ())
        self.result_list = rows
        self.tabs = self.state_tabs(StoppedFilter)


@admin.register(Worker)
class WorkerAdmin(VerbAdmin):
    """Workers that run, and those that stopped not long ago. Nothing here stops one: its own host does."""

    list_display = ("worker_name", "state", "jobs_now", "memory", "served", "last_heartbeat", "since", "release")
    list_display_links = ("worker_name",)
    change_list_template = "admin/jobqueue/worker_list.html"
    list_filter = (StoppedFilter,)
    list_class = WorkerList
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

    def parts_of(self, row: Any, request: HttpRequest, permitted: Sequence[str]) -> dict[str, Any]:
        return worker_page(row, request, may_ask="ask_stacks" in permitted)

    def title_of(self, row: Any, name: str) -> str:
        return gettext("%(what)s (worker %(id)d)") % {"what": plain(short_worker(row.name), TITLE_CHARS), "id": row.pk}

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
        shown = some(jobs, worker.jobs, worker.now) if jobs else ""
        return stacked(busy(worker, linked=jobs is not None), shown)

    @admin.display(description=label(Worker, "rss_bytes"))
    def memory(self, worker: ShownWorker) -> str:
        return memory_of(worker) or NOTHING

    @admin.display(description=_("last heartbeat"))
    def last_heartbeat(self, worker: ShownWorker) -> str:
        """When; below it how far the clock of the host is from the database's, if that matters."""
        return stacked(relative(worker.heartbeat_at, worker.now), clock(worker))

    @admin.display(description=_("started"))
    def since(self, worker: ShownWorker) -> str:
        return relative(worker.started_at, worker.now)
