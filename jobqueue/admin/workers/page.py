"""The page of a worker: its state, the jobs it holds, what is known of its process, and where its threads are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.addresses import address_of, link, list_address
from jobqueue.admin.page.cells import Table
from jobqueue.admin.page.facts import Fact, facts
from jobqueue.admin.page.formatting import label, moment, number, plain, pretty, relative, span
from jobqueue.admin.page.history import recent
from jobqueue.admin.workers import held
from jobqueue.admin.workers.stacks import Stacks, stacks_of
from jobqueue.admin.workers.states import clock, state_badge, troubles, what_next
from jobqueue.conf import load
from jobqueue.maintenance.worker_list import held_jobs
from jobqueue.models import Worker

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from jobqueue.admin.workers.states import ShownWorker


@dataclass(frozen=True, slots=True)
class Button:
    """A button for the template buttons.html."""

    name: str
    label: StrOrPromise
    note: StrOrPromise


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """The parts of the page; an empty one is left out."""

    state: str
    line: list[str]
    next: str
    troubles: list[str]
    release: str  # the address of the page that releases all of its jobs
    jobs: Table | None
    no_jobs: str  # instead of them
    more: str
    buttons: list[Button]
    stacks: Stacks | None
    details: list[Fact]
    internals: list[Fact]
    history: list[tuple[str, str, str]]


def worker_page(worker: ShownWorker, request: HttpRequest, *, may_ask: bool) -> WorkerPage:
    """The page for this user; the jobs only for those who may see jobs."""
    may_see_jobs = request.user.has_perm("jobqueue.view_job")
    jobs = held_jobs([worker.name], limit=held.ON_PAGE, using=load().database) if may_see_jobs and worker.jobs else {}
    shown = jobs.get(worker.name, [])
    next_ = what_next(worker)
    return WorkerPage(
        state=state_badge(worker),
        line=_line(worker, linked=may_see_jobs),
        next=next_,
        troubles=troubles(worker),
        release=_release_page(worker, request) if next_ and worker.jobs else "",
        jobs=held.table(shown, worker.now) if shown else None,
        no_jobs=gettext("None.") if not worker.jobs else gettext("You may not see jobs."),
        more=_more(worker) if shown and worker.jobs > len(shown) else "",
        buttons=[_ASK] if may_ask and worker.stopped_at is None else [],
        stacks=stacks_of(worker) if may_ask else None,
        details=_details(worker),
        internals=_internals(worker),
        history=recent(Worker, worker.pk),
    )


_ASK = Button(
    "ask_stacks",
    _("Ask for stacks"),
    _("Shows which line of code each of its threads is at. Its jobs go on meanwhile."),
)


def _line(worker: ShownWorker, *, linked: bool) -> list[str]:
    """Short facts for the line of the state."""
    runs = worker.stopped_at is None
    ran = {"time": span(((worker.stopped_at or worker.now) - worker.started_at).total_seconds())}
    return [
        format_html(gettext("{} threads busy"), held.busy(worker, linked=linked)),
        gettext("last heartbeat %(time)s") % {"time": relative(worker.heartbeat_at, worker.now)},
        (gettext("running for %(time)s") if runs else gettext("ran %(time)s")) % ran,
    ]


def _release_page(worker: ShownWorker, request: HttpRequest) -> str:
    """The page of a verb on many jobs, filled with those of this worker; "" for those who may not release jobs."""
    if not all(map(request.user.has_perm, ("jobqueue.release_job", "jobqueue.view_job"))):
        return ""
    return address_of("auditevent_new", worker=worker.name, verb="release")


def _more(worker: ShownWorker) -> str:
    words = {"n": number(held.ON_PAGE), "all": number(worker.jobs)}
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
