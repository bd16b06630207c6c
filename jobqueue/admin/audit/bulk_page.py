"""The page that applies a verb to all jobs that match the filters of the list: preview, confirmation, start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.audit.recording import permitted, record
from jobqueue.admin.jobs.bulk_filters import RELATIVE, Exact, exact
from jobqueue.admin.jobs.filters import AGES, LISTED, SEARCH, chosen
from jobqueue.admin.jobs.states import LABELS
from jobqueue.admin.page.addresses import index_address, list_address, page_address
from jobqueue.admin.page.formatting import (
    CAUSES,
    NOTHING,
    StrOrPromise,
    badge,
    error_lines,
    job_link,
    number,
    plain,
    task_cell,
)
from jobqueue.admin.page.tables import Column, Table, table_of
from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.exceptions import DatabaseBusy, InvalidType, InvalidValue, OutcomeUnknown
from jobqueue.maintenance.worker_rows import is_any_alive
from jobqueue.models import AuditEvent, Job
from jobqueue.models.audit import REASON_CHARS
from jobqueue.models.states import state_of
from jobqueue.runs.job_filter import FILTERS
from jobqueue.runs.verbs import VERB_STATES
from jobqueue.runs.walking import MATCHED_MAX, Preview, preview

#: the choice of a verb, and the note on what it does
VERBS: dict[str, tuple[StrOrPromise, StrOrPromise]] = {
    AuditEvent.Verb.RETRY: (
        _("Retry"),
        _(
            "Failed and canceled jobs run again, with new attempts. Scheduled and held jobs run now if you chose their "
            "state."
        ),
    ),
    AuditEvent.Verb.CANCEL: (_("Cancel"), _("Waiting jobs end as canceled. Running jobs are asked to stop.")),
    AuditEvent.Verb.DISCARD: (_("Discard"), _("Waiting and failed jobs end as canceled, and do not run.")),
    AuditEvent.Verb.RELEASE: (
        _("Release"),
        _("Running jobs are taken from their workers and run again, without using an attempt."),
    ),
    AuditEvent.Verb.PRUNE: (
        _("Delete"),
        _("Ended jobs are deleted with their attempts. Nothing can bring them back."),
    ),
}
TITLES: dict[str, StrOrPromise] = {name: one.title for name, one in (FILTERS | LISTED).items()} | {SEARCH: _("search")}
_VALUES: dict[str, Mapping[str, StrOrPromise]] = {
    "state": LABELS,
    "cause": CAUSES,
    "age": {name: word for name, (_length, word) in AGES.items()},
}
VALUE_CHARS = 100


def filter_parts(filters: Mapping[str, str]) -> list[tuple[StrOrPromise, str]]:
    """The title and the value of each filter."""
    return [
        (TITLES.get(name, plain(name, 40)), str(_VALUES.get(name, {}).get(value, plain(value, VALUE_CHARS))))
        for name, value in filters.items()
    ]


def filter_words(filters: Mapping[str, str]) -> str:
    """Such as "state: failed, queue: mail"."""
    return ", ".join(f"{title}: {value}" for title, value in filter_parts(filters)) or gettext("all jobs")


def matched_words(matched: int | None) -> str:
    """Such as "1,200", or "10,000+" from the number up to which jobs are counted."""
    if matched is None:
        return gettext("not counted")
    return number(matched) + ("+" if matched >= MATCHED_MAX else "")


#: up to this number of jobs a button is enough; for more, the user types the number
BUTTON_MAX = 1000
#: how much the number of jobs may have grown since the preview
_GROWN, _FEW = 1.1, 10


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What was sent with the form."""

    reason: str = ""
    typed: str = ""
    everything: bool = False
    shown: int | None = None  # the number of jobs that the page has shown
    until_id: int | None = None  # the newest job when it was shown

    @staticmethod
    def wanted(verb: str, filters: Mapping[str, str], found: Preview) -> str:
        """What must be typed; "" if nothing must be."""
        if found.matched is None:
            return verb
        return str(found.matched) if found.matched > BUTTON_MAX or not filters else ""

    def problem(self, verb: str, filters: Mapping[str, str], found: Preview) -> str:
        """What is missing, as a sentence; "" if all is confirmed."""
        if not filters and not self.everything:
            return gettext("Nothing was written: choose a filter first, or tick that you mean all jobs.")
        if found.matched == 0:
            return gettext("Nothing was written: no job matches any more.")
        if self._has_grown(found):
            return gettext("Nothing was written: meanwhile more jobs match. Look at the new number.")
        if not self.wanted(verb, filters, found):
            return ""
        typed = "".join(c for c in self.typed if c not in " ,.+'\u00a0\u202f").lower()
        if typed == (verb if found.matched is None else str(self.shown)):
            return ""
        return gettext("Nothing was written: type what the page asks for, to confirm.")

    def _has_grown(self, found: Preview) -> bool:
        if found.matched is None:
            return self.shown is not None
        return self.shown is not None and found.matched > self.shown * _GROWN + _FEW


def confirmation_of(data: Mapping[str, str]) -> Confirmation:
    """The confirmation in a POST. A number that no page can have sent counts as missing."""
    return Confirmation(
        reason=data.get("reason", ""),
        typed=data.get("typed", ""),
        everything=data.get("everything") == "yes",
        shown=_number(data.get("shown", "")),
        until_id=_number(data.get("until_id", "")),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


FIRST_SHOWN = 10


def new_bulk(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """The page. The filters stand in the address; a POST with `start` records what the preview has shown."""
    allowed = permitted(request)
    if not request.user.has_perm("jobqueue.view_job") or not allowed:
        raise PermissionDenied
    wanted = chosen(request)
    filters, problem = _filters(request, wanted)
    verb = (request.POST if request.method == "POST" else request.GET).get("verb", "")
    if request.method == "POST" and verb not in allowed:
        raise PermissionDenied
    fitting = [name for name in allowed if filters.get("state") in (None, *VERB_STATES[name])]
    verb = verb if verb in fitting else next(iter(fitting), "")
    given = confirmation_of(request.POST) if request.method == "POST" else Confirmation()
    if problem:
        return _show(request, site, "", wanted, given, None, [], problem)
    found = _preview(request, verb, filters, given.until_id) if verb else None
    if found is not None and request.method == "POST" and "start" in request.POST:
        problem = given.problem(verb, filters, found)
        if not problem:
            return _start(request, site, verb, filters, given, found)
        messages.warning(request, problem)
    return _show(request, site, verb, filters, given, found, fitting)


def _filters(request: HttpRequest, wanted: dict[str, str]) -> Exact:
    """What the filters of the address meant when the page was shown."""
    if shown := request.POST.get("exact", ""):
        # preview() checks them.
        return Exact(dict(parse_qsl(shown, keep_blank_values=True)))
    if "\x00" in request.GET.get(SEARCH, ""):
        # The list refuses such a search. If it were left out, the filters would mean more jobs.
        wanted = wanted | {SEARCH: request.GET[SEARCH].replace("\x00", "\ufffd")}
    return exact(wanted, load().database)


def _preview(request: HttpRequest, verb: str, filters: dict[str, str], until_id: int | None) -> Preview | None:
    try:
        return preview(verb, filters, first=FIRST_SHOWN, using=load().database, until_id=until_id)
    except (InvalidType, InvalidValue) as error:
        messages.error(request, plain(str(error), 300))
        return None


def _start(
    request: HttpRequest, site: AdminSite, verb: str, filters: dict[str, str], given: Confirmation, found: Preview
) -> HttpResponse:
    """Record the action, and lead to its page, or to the list of jobs if the user may not see that page."""
    try:
        event = record(
            request, verb, filters, reason=given.reason, everything=given.everything, until_id=found.until_id
        )
    except OutcomeUnknown:
        text = gettext("Whether it was started is unknown: look at the audit before you repeat it.")
    except (Error, DatabaseBusy):
        text = gettext("The database could not be written to. Nothing was started; try again later.")
    else:
        started = gettext("Bulk action %(id)d was started; workers carry it out.") % {"id": event.pk}
        messages.success(request, started)
        may_see = request.user.has_perm("jobqueue.view_auditevent")
        page = page_address("auditevent", event.pk) if may_see else list_address("job")
        return HttpResponseRedirect(page or index_address())
    messages.error(request, text)
    return _show(request, site, verb, filters, given, found, permitted(request))


def _show(
    request: HttpRequest,
    site: AdminSite,
    verb: str,
    filters: dict[str, str],
    given: Confirmation,
    found: Preview | None,
    fitting: list[str],
    refusal: str = "",
) -> HttpResponse:
    query, wanted = request.GET.copy(), chosen(request)
    links = []
    for name in fitting:
        query["verb"] = name
        links.append((VERBS[name][0], f"?{query.urlencode()}", name == verb))
    query.pop("verb", None)
    context = site.each_context(request) | (_found(verb, filters, found) if found is not None else {})
    context |= {
        "title": gettext("Apply to all jobs that match"),
        "opts": AuditEvent._meta,
        "verb": verb,
        "verbs": links,
        "note": VERBS[verb][1] if verb else gettext("You may use no verb that changes jobs in this state."),
        "refusal": refusal,
        "filters": filter_parts({name: wanted[name] for name in RELATIVE if name in wanted} | filters),
        "exact": urlencode(filters),
        "given": given,
        "reason_chars": REASON_CHARS,
        "address": f"{request.path}?{query.urlencode()}",
        "list_address": f"{list_address('job') or index_address()}?{query.urlencode()}",
        "idle": not is_any_alive(load().worker_silent_seconds, using=load().database),
    }
    return TemplateResponse(request, "admin/jobqueue/bulk.html", context)


def _found(verb: str, filters: dict[str, str], found: Preview) -> dict[str, Any]:
    """What the template shows of a preview."""
    count = 2 if found.matched is None else found.matched
    said = ngettext("%(n)s job matches and can be changed.", "%(n)s jobs match and can be changed.", count)
    many = gettext("Counting took too long: there may be very many jobs.")
    start = ngettext("%(verb)s %(n)s job", "%(verb)s %(n)s jobs", count)
    words = {"verb": VERBS[verb][0], "n": matched_words(found.matched)}
    return {
        "counted": many if found.matched is None else said % words,
        "start": "" if found.matched == 0 else (VERBS[verb][0] if found.matched is None else start % words),
        "shown": "" if found.matched is None else found.matched,
        "until_id": found.until_id,
        "to_type": Confirmation.wanted(verb, filters, found),
        "to_type_shown": verb if found.matched is None else number(found.matched),
        "ask_everything": not filters,
        "is_capped": found.is_capped,
        "table": _table(found.first) if found.first else None,
    }


def _table(jobs: list[Job]) -> Table:
    using = load().database
    now, errors = read_now(using), error_lines([job.pk for job in jobs if job.attempts], using)
    titles = (_("job"), _("state"), _("queue"), _("task"), Column(_("error"), is_message=True))
    rows = [
        (
            job_link(job.pk),
            badge(state_of(job, now), str(LABELS[state_of(job, now)])),
            plain(job.queue),
            task_cell(job.task or ""),
            errors.get(job.pk) or NOTHING,
        )
        for job in jobs
    ]
    return table_of(titles, rows)
