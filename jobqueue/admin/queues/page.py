"""The pages of a queue, of a task in a queue, and of a circuit breaker: what is set, and the forms that change it.

A POST alone changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import CHANGE
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from jobqueue import flow
from jobqueue.admin.jobs.states import LABELS
from jobqueue.admin.page.addresses import link, list_address
from jobqueue.admin.page.fields import tried
from jobqueue.admin.page.formatting import NOTHING, plain, span, stacked
from jobqueue.admin.page.history import log_entry, recent
from jobqueue.admin.page.tables import table_of
from jobqueue.admin.queues.forms import LimitForm, ReasonForm
from jobqueue.admin.queues.rows import (
    NAME_CHARS,
    breaker_cells,
    breaker_page,
    count_cell,
    limit_texts,
    mode_cell,
    queue_page,
)
from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.flow import wording
from jobqueue.flow.breakers import breaker_facts
from jobqueue.flow.overview import QueueState, place_state, queue_states
from jobqueue.flow.rules import BY_CHARS, check_place
from jobqueue.flow.wording import instant_text
from jobqueue.models import BreakerState, FlowRule
from jobqueue.stats.live import COUNTS
from jobqueue.tasks import registry

TASKS_SUGGESTED = 200
PERMISSIONS = {
    "pause": "pause_queue",
    "drain": "pause_queue",
    "resume": "pause_queue",
    "limit": "change_limits",
    "clear": "change_limits",
}


class Place(NamedTuple):
    """A queue, or a task in it."""

    queue: str
    task: str | None
    using: str

    @property
    def page(self) -> str:
        """The address of its page."""
        return queue_page(self.queue, self.task)

    def state(self) -> QueueState:
        """What is set now."""
        return place_state(self.queue, self.task, using=self.using)

    def row(self) -> FlowRule | None:
        """Its row, which is made when something is set for the first time."""
        return FlowRule.objects.using(self.using).filter(queue=self.queue, task=self.task or "").first()


@dataclass(frozen=True, slots=True)
class Verb:
    """What a button does: `apply` tells whether it changed something, `say` gives sentences on what holds now."""

    apply: Callable[[], bool]
    say: Callable[[QueueState, bool], Iterable[str]]
    what: str  # for the history


def place_view(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """The page; after a POST that changed something, the page again."""
    place = _place(request)
    if place is None:
        return HttpResponseRedirect(list_address("flowrule"))
    reasons, limits = ReasonForm(), None
    if request.method == "POST":
        name = request.POST.get("verb", "")
        if name not in PERMISSIONS:
            raise SuspiciousOperation("a verb of no button")
        if not request.user.has_perm(f"jobqueue.{PERMISSIONS[name]}"):
            raise PermissionDenied
        form = {"pause": ReasonForm, "drain": ReasonForm, "limit": LimitForm}.get(name, forms.Form)(request.POST)
        if _is_done(request, place, name, form):
            return HttpResponseRedirect(place.page)
        reasons = form if isinstance(form, ReasonForm) else reasons
        limits = form if isinstance(form, LimitForm) else None
    return _show(request, site, place, reasons, limits)


def _place(request: HttpRequest) -> Place | None:
    """The queue and task of the address; None, and a message, if there can be none of these names."""
    queue, task, using = request.GET.get("queue", ""), request.GET.get("task") or None, load().database
    if task is not None and registry.find_task(task) is None:
        # This process may not have imported it yet.
        list(registry.discover())
    try:
        check_place(queue, task, using=using)
    except (InvalidType, InvalidValue) as error:
        messages.error(request, plain(error))
        return None
    return Place(queue, task, using)


def _is_done(request: HttpRequest, place: Place, name: str, form: forms.Form) -> bool:
    """Whether a POST did what it asked for; else the form, or a message, says why not."""
    if not form.is_valid():
        return False
    if name == "drain" and (place.task is not None or form.cleaned_data["until"] is not None):
        form.add_error(None, gettext("Only a whole queue can drain, and without an end. Nothing was written."))
        return False
    verb = _verb(place, name, form, request.user.get_username()[:BY_CHARS])
    changed = tried(request, form, verb.apply)
    if changed is None:
        return False
    sentences = " ".join(verb.say(place.state(), changed))
    messages.add_message(request, messages.SUCCESS if changed else messages.WARNING, plain(sentences))
    row = place.row()
    if changed and row is not None:
        log_entry(request, FlowRule, row.pk, str(row), CHANGE, verb.what).save()
    return True


def _verb(place: Place, name: str, form: forms.Form, by: str) -> Verb:
    queue, task, using = place
    values = form.cleaned_data

    def pause() -> bool:
        flow.pause(queue, task=task, reason=values["reason"], until=values["until"], by=by, using=using)
        return True

    def drain() -> bool:
        flow.drain(queue, reason=values["reason"], by=by, using=using)
        return True

    def limit() -> bool:
        flow.set_limit(queue, task=task, **form.changes(), using=using)  # type: ignore[attr-defined]
        return True

    if name == "pause":
        until = f" until {values['until'].isoformat(timespec='seconds')}" if values["until"] else ""
        return Verb(pause, lambda state, changed: wording.after_pause(state), f"pause{until}: {values['reason']}")
    if name == "drain":
        return Verb(drain, lambda state, changed: wording.after_drain(state), f"drain: {values['reason']}")
    if name == "resume":
        return Verb(lambda: flow.resume(queue, task=task, by=by, using=using), wording.after_resume, "resume")
    if name == "clear":
        return Verb(lambda: flow.clear_limit(queue, task=task, using=using), wording.after_clear, "clear limits")
    given: dict[str, Any] = form.changes()  # type: ignore[attr-defined]
    which = {"concurrency": "concurrency" in given, "rate": "rate" in given}
    what = ", ".join(f"{key} {'none' if value is None else value}" for key, value in given.items())
    return Verb(limit, lambda state, changed: wording.after_limit(state, **which), f"limit: {what}")


def _show(
    request: HttpRequest, site: AdminSite, place: Place, reasons: ReasonForm, limits: LimitForm | None
) -> HttpResponse:
    state, *tasks = queue_states(using=place.using, names=[place.queue]) if place.task is None else [place.state()]
    now, row = read_now(place.using), place.row()
    present = wording.concurrency_text(state), state.rate or ""
    may = {verb: request.user.has_perm(f"jobqueue.{needed}") for verb, needed in PERMISSIONS.items()}
    context = site.each_context(request) | {
        "title": _title(place),
        "opts": FlowRule._meta,
        "page": place.page,
        "place": place,
        "queue_page": queue_page(place.queue),
        "queue_name": plain(place.queue, NAME_CHARS),
        "facts": list(_facts(state, now, links=request.user.has_perm("jobqueue.view_job"))),
        "reasons": reasons if may["pause"] else None,
        "can_drain": place.task is None,
        "can_resume": may["resume"] and bool(state.mode),
        "limits": (limits or LimitForm(present=present)) if may["limit"] else None,
        "can_clear": bool(state.set_here),
        "tasks": table_of(
            (gettext("Task"), gettext("State")),
            [
                (link(queue_page(place.queue, one.task), plain(one.task, NAME_CHARS)), mode_cell(one, now))
                for one in tasks
            ],
        ),
        "suggested": registry.names()[0][:TASKS_SUGGESTED] if place.task is None else [],
        "jobs_page": _jobs_page(request, place),
        "history": recent(FlowRule, row.pk) if row is not None else [],
    }
    return TemplateResponse(request, "admin/jobqueue/queue.html", context)


def _title(place: Place) -> str:
    names = {"queue": plain(place.queue, NAME_CHARS), "task": plain(place.task, NAME_CHARS)}
    return gettext("Task %(task)s in queue %(queue)s") % names if place.task else gettext("Queue %(queue)s") % names


def _facts(state: QueueState, now: Any, *, links: bool) -> Iterable[tuple[str, str]]:
    yield gettext("state"), mode_cell(state, now)
    if state.task is None:
        for name in COUNTS:
            yield str(LABELS[name]), count_cell(state, name, links=links)
        yield gettext("oldest ready job"), span(state.oldest_age_seconds) if state.oldest_age_seconds else NOTHING
    for name, title in (("concurrency", gettext("concurrency")), ("rate", gettext("rate"))):
        text, origin = limit_texts(state, name)
        if state.task is not None and not origin:
            text = gettext("as in its code")
        yield title, stacked(text, origin)


def _jobs_page(request: HttpRequest, place: Place) -> str:
    if place.task is not None or not request.user.has_perm("jobqueue.view_job"):
        return ""
    return list_address("job", queue=place.queue)


def breaker_view(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """The page; after a POST that changed something, the page again."""
    using = load().database
    try:
        breaker = flow.breaker(request.GET.get("dependency", ""), using=using)
    except (InvalidType, InvalidValue) as error:
        messages.error(request, plain(error))
        return HttpResponseRedirect(list_address("flowrule"))
    reasons = ReasonForm()
    if request.method == "POST":
        name = request.POST.get("verb", "")
        if name not in ("open", "close"):
            raise SuspiciousOperation("a verb of no button")
        if not request.user.has_perm("jobqueue.pause_queue"):
            raise PermissionDenied
        form = ReasonForm(request.POST) if name == "open" else forms.Form(request.POST)
        if form.is_valid() and (_open if name == "open" else _close)(request, breaker, form):
            return HttpResponseRedirect(breaker_page(breaker.dependency))
        reasons = form if isinstance(form, ReasonForm) else reasons
    return _show_breaker(request, site, breaker.dependency, reasons, using)


def _open(request: HttpRequest, breaker: flow.Breaker, form: forms.Form) -> bool:
    values = form.cleaned_data

    def apply() -> bool:
        breaker.open(values["reason"], values["until"])
        return True

    if tried(request, form, apply) is None:
        return False
    name, until = {"name": plain(breaker.dependency)}, values["until"]
    said = gettext("The circuit breaker of %(name)s is open: its jobs wait, and jobs that run go on.") % name
    if until:
        said += " " + gettext("It closes by itself at %(at)s.") % {"at": instant_text(until)}
    messages.success(request, said)
    ending = f" until {until.isoformat(timespec='seconds')}" if until else ""
    _log(request, breaker.dependency, f"open{ending}: {values['reason']}")
    return True


def _close(request: HttpRequest, breaker: flow.Breaker, form: forms.Form) -> bool:
    changed = tried(request, form, breaker.close)
    if changed is None:
        return False
    name = {"name": plain(breaker.dependency)}
    if changed:
        messages.success(request, gettext("The circuit breaker of %(name)s is closed: its jobs start again.") % name)
        _log(request, breaker.dependency, "close")
    else:
        said = gettext("The circuit breaker of %(name)s was closed already; nothing was changed.") % name
        messages.warning(request, said)
    return True


def _log(request: HttpRequest, dependency: str, what: str) -> None:
    log_entry(request, BreakerState, dependency, f"breaker {dependency}", CHANGE, what).save()


def _show_breaker(
    request: HttpRequest, site: AdminSite, dependency: str, reasons: ReasonForm, using: str
) -> HttpResponse:
    (facts,) = breaker_facts(using=using, name=dependency)
    cells = breaker_cells(facts, read_now(using))[1:]
    titles = (gettext("state"), gettext("reason"), gettext("since"), gettext("what happens next"))
    may = request.user.has_perm("jobqueue.pause_queue")
    context: dict[str, Any] = site.each_context(request) | {
        "title": gettext("Circuit breaker of %(name)s") % {"name": plain(dependency, NAME_CHARS)},
        "opts": FlowRule._meta,
        "page": breaker_page(dependency),
        "facts": list(zip(titles, cells, strict=True)),
        "reasons": reasons if may else None,
        "can_close": may and facts.state != "closed",
        "history": recent(BreakerState, dependency),
    }
    return TemplateResponse(request, "admin/jobqueue/breaker.html", context)
