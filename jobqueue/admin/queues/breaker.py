"""The page of a circuit breaker: its state, and the forms that open and close it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import CHANGE
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from jobqueue import flow
from jobqueue.admin.page.addresses import list_address
from jobqueue.admin.page.formatting import plain
from jobqueue.admin.page.history import log_entry, recent
from jobqueue.admin.queues.forms import ReasonForm
from jobqueue.admin.queues.rows import NAME_CHARS, breaker_cells, breaker_page
from jobqueue.admin.queues.write import tried
from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.flow.breaker_list import breaker_facts
from jobqueue.flow.wording import instant_text
from jobqueue.models import BreakerState, FlowRule


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
    return _show(request, site, breaker.dependency, reasons, using)


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


def _show(request: HttpRequest, site: AdminSite, dependency: str, reasons: ReasonForm, using: str) -> HttpResponse:
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
