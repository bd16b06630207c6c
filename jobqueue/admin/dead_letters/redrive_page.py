"""The page on which a redrive is chosen, looked at and started. Nothing is written before its last button."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.dead_letters.failures import failure_table
from jobqueue.admin.page.addresses import address_of, index_address, list_address, page_address
from jobqueue.admin.page.formatting import (
    CAUSES,
    NOTHING,
    StrOrPromise,
    error_lines,
    job_link,
    number,
    plain,
    relative,
    span,
    task_cell,
)
from jobqueue.admin.page.history import log_entry
from jobqueue.admin.page.tables import Column, Table, table_of
from jobqueue.base.durations import parse_rate
from jobqueue.base.validation import IDS_MAX
from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.dead_letters import Redriven, redrive
from jobqueue.dead_letters.listing import Candidate, preview
from jobqueue.dead_letters.recording import CANARY_MAX
from jobqueue.exceptions import DatabaseBusy, InvalidType, InvalidValue, OutcomeUnknown
from jobqueue.failures import FailureCause
from jobqueue.maintenance.worker_rows import is_any_alive
from jobqueue.models import Job, Redrive
from jobqueue.runs.job_filter import check_dead_filter

#: jobs that a redrive retries first, unless somebody chooses another number
CANARY = 10
#: fields that choose dead letters, and fields that say how they are retried
WHICH = ("fingerprint", "queue", "task", "cause", "job_ids", "everything")
HOW = ("canary", "rate", "limit")
#: an expired job is CANCELED, so no dead letter has this cause
_CAUSES: list[tuple[str, StrOrPromise]] = [
    ("", _("any")),
    *((cause, word) for cause, word in CAUSES.items() if cause != FailureCause.EXPIRED),
]

_WIDE = forms.TextInput(attrs={"class": "vTextField"})


class RedriveForm(forms.Form):
    """Its values are those of dead_letters.redrive()."""

    fingerprint = forms.RegexField(
        r"\A[0-9a-f]{16}\Z",
        label=_("fingerprint of the failure"),
        required=False,
        widget=_WIDE,
        error_messages={"invalid": _("A fingerprint has 16 hexadecimal digits.")},
    )
    queue = forms.CharField(label=_("queue"), required=False, max_length=64, widget=_WIDE)
    task = forms.CharField(
        label=_("task"),
        required=False,
        max_length=255,
        widget=_WIDE,
        help_text=_("The whole path, such as shop.tasks.pay."),
    )
    cause = forms.ChoiceField(label=_("cause"), required=False, choices=_CAUSES)
    job_ids = forms.CharField(
        label=_("job ids"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
        help_text=_("Separated by spaces, commas or new lines."),
    )
    everything = forms.BooleanField(label=_("all dead letters, without a filter"), required=False)
    canary = forms.IntegerField(
        label=_("canary"),
        required=False,
        min_value=0,
        max_value=CANARY_MAX,
        initial=CANARY,
        help_text=_("So many jobs first; the others only after each of these has passed. 0: all at once."),
    )
    rate = forms.CharField(
        label=_("rate"), required=False, max_length=40, help_text=_("At most so many jobs: 50/s, 100/m, 5/30s.")
    )
    limit = forms.IntegerField(
        label=_("limit"), required=False, min_value=1, max_value=10**9, help_text=_("At most so many, the oldest.")
    )

    def clean_job_ids(self) -> list[int] | None:
        words = self.cleaned_data["job_ids"].replace(",", " ").split()
        if not all(word.isascii() and word.isdigit() and int(word[:19]) > 0 and len(word) < 19 for word in words):
            raise forms.ValidationError(gettext("A job id is a number above 0."))
        ids = sorted({int(word) for word in words})
        if len(ids) > IDS_MAX:
            raise forms.ValidationError(gettext("At most %(n)d ids; choose by another filter.") % {"n": IDS_MAX})
        return ids or None

    def clean_rate(self) -> str | None:
        rate: str = self.cleaned_data["rate"].strip()
        try:
            if rate:
                parse_rate(rate)
        except InvalidValue:
            raise forms.ValidationError(gettext("This is not a rate. Write 50/s, 100/m or 5/30s.")) from None
        return rate or None

    def clean(self) -> dict[str, Any]:
        """Refuse no filter, and a filter beside "everything"."""
        found: dict[str, Any] = self.cleaned_data
        filters = [name for name in WHICH if name != "everything" and found.get(name)]
        if not filters and not found.get("everything") and not self.errors:
            raise forms.ValidationError(gettext('Choose a filter, or tick "all dead letters, without a filter".'))
        if filters and found.get("everything"):
            raise forms.ValidationError(gettext('A filter and "all dead letters, without a filter" contradict.'))
        return found

    def chosen(self) -> dict[str, Any]:
        """The filters that were given, as arguments of redrive(). Call it after is_valid()."""
        return {name: self.cleaned_data[name] for name in WHICH if self.cleaned_data[name]}

    def pace(self) -> dict[str, Any]:
        """How they are retried, as arguments of redrive(). Call it after is_valid()."""
        found = {name: self.cleaned_data[name] for name in HOW if self.cleaned_data[name] is not None}
        return {"canary": 0} | found

    def hidden(self) -> list[tuple[str, object]]:
        """The values as they were checked, for the form that starts the redrive."""
        values = {**self.chosen(), **self.pace()}
        if "job_ids" in values:
            values["job_ids"] = " ".join(map(str, values["job_ids"]))
        return list(values.items())


def form_of(values: Mapping[str, object]) -> RedriveForm:
    """The form filled with these values, ready to be checked; fields that are missing have their first values."""
    return RedriveForm({"canary": CANARY} | {name: values[name] for name in (*WHICH, *HOW) if name in values})


GROUPS_SHOWN, FIRST_SHOWN = 20, 10
#: dead letters that are put into groups
GROUPED_MAX = 5_000
LOG_BATCH = 100


def may_redrive(request: HttpRequest) -> bool:
    """Whether this user may use the page: it shows jobs, and starts redrives."""
    return request.user.has_perm("jobqueue.redrive_jobs") and request.user.has_perm("jobqueue.view_job")


def new_redrive(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """The page. A filter in the address fills the form; a POST with `start` records what the preview has shown."""
    if not may_redrive(request):
        raise PermissionDenied
    given = request.POST if request.method == "POST" else request.GET
    if not any(name in given for name in WHICH) and request.method != "POST":
        return show(request, site, RedriveForm())
    form = form_of({name: given[name] for name in given})
    if request.method == "POST" and "start" in given and form.is_valid():
        if not form.cleaned_data["everything"] or given.get("confirm") == "yes":
            return _start(request, site, form)
        messages.warning(request, gettext("Nothing was written: tick the question at the end to retry all."))
    return show(request, site, form)


def show(request: HttpRequest, site: AdminSite, form: RedriveForm) -> HttpResponse:
    """The form, and below it the preview if its values are right."""
    context = site.each_context(request) | (_preview(form, request) if form.is_valid() else {})
    context |= {
        "title": gettext("New redrive of dead letters"),
        "opts": Redrive._meta,
        "form": form,
        "parts": [
            (gettext("Which dead letters"), [form[name] for name in WHICH]),
            (gettext("How they are retried"), [form[name] for name in HOW]),
        ],
        "page": address_of("redrive_new"),
    }
    return TemplateResponse(request, "admin/jobqueue/new_redrive.html", context)


def _preview(form: RedriveForm, request: HttpRequest) -> dict[str, Any]:
    """What the template shows of a redrive with these values; or what is wrong with them."""
    using = load().database
    chosen, pace = form.chosen(), form.pace()
    try:
        wanted = check_dead_filter(**{name: value for name, value in chosen.items() if name != "everything"})
        seen = preview(wanted, first=FIRST_SHOWN, grouped=GROUPED_MAX, using=using)
    except (InvalidType, InvalidValue) as error:
        form.add_error(None, str(error))
        return {}
    now = read_now(using)
    limit = pace.get("limit")
    retried = limit if seen.matched is None else min(seen.matched, limit or seen.matched)
    return {
        "previewed": True,
        "start": _start_words(retried),
        "steps": list(_steps(seen.matched, retried, pace)),
        "groups": failure_table(seen.groups[:GROUPS_SHOWN], now, request, redrives="job_ids" in chosen),
        "groups_left": " ".join(_left_out(len(seen.groups) - GROUPS_SHOWN, are_older=seen.are_older)),
        "first": _first(seen.first[:retried], now),
        "hidden": form.hidden(),
        "question": _question(retried) if "everything" in chosen else "",
        "idle": not is_any_alive(load().worker_silent_seconds, using=using),
    }


def _start_words(retried: int | None) -> str:
    if retried is None:
        return gettext("Start: retry all that match")
    return ngettext("Start: retry %(n)d job", "Start: retry %(n)d jobs", retried) % {"n": retried}


def _steps(matched: int | None, retried: int | None, pace: dict[str, Any]) -> Iterator[str]:
    """What will happen, in order."""
    if matched is None:
        yield gettext("So many dead letters match that counting them took too long.")
    else:
        yield ngettext("%(n)d dead letter matches.", "%(n)d dead letters match.", matched) % {"n": matched}
    if retried is not None and (matched is None or retried < matched):
        yield gettext("Only the %(n)d oldest of them are retried, by the limit.") % {"n": retried}
    if retried == 0:
        return
    yield from _order(retried, pace)
    yield gettext("Jobs of one ordering key keep their order. A job that is no longer failed by then is left alone.")


def _order(retried: int | None, pace: dict[str, Any]) -> Iterator[str]:
    """The canary and the others, and the time that they take at least."""
    first = pace["canary"]
    if first and (retried is None or first < retried):
        yield ngettext(
            "The %(n)d oldest job is retried first, as a canary. If it fails its next attempt, the redrive stops, and "
            "the others stay as they are.",
            "The %(n)d oldest jobs are retried first, as a canary. If one of them fails its next attempt, the redrive "
            "stops, and the others stay as they are.",
            first,
        ) % {"n": first}
        if retried is None:
            yield gettext("After that, the others are retried, oldest first.")
            return
        yield ngettext(
            "After that, %(n)d other job is retried.",
            "After that, the other %(n)d jobs are retried, oldest first.",
            retried - first,
        ) % {"n": retried - first}
    elif retried is None:
        yield gettext("All of them are retried, oldest first.")
        return
    else:
        yield ngettext("%(n)d job is retried.", "%(n)d jobs are retried, oldest first.", retried) % {"n": retried}
    if pace.get("rate") and retried > 1:
        seconds = (retried - 1) / parse_rate(pace["rate"])
        yield gettext("At most %(rate)s become due, so it takes at least %(time)s.") % {
            "rate": pace["rate"],
            "time": span(seconds),
        }


def _question(retried: int | None) -> str:
    if retried is None:
        return gettext("Yes, retry all dead letters of all queues.")
    return ngettext(
        "Yes, retry all dead letters of all queues: %(n)d job.",
        "Yes, retry all dead letters of all queues: %(n)d jobs.",
        retried,
    ) % {"n": retried}


def _left_out(groups: int, *, are_older: bool) -> Iterator[str]:
    if are_older:
        yield gettext("Only the newest %(n)s dead letters are counted.") % {"n": number(GROUPED_MAX)}
    if groups > 0:
        yield ngettext("%(n)d smaller group is not shown.", "%(n)d smaller groups are not shown.", groups) % {
            "n": groups
        }


def _first(jobs: Sequence[Candidate], now: datetime) -> Table:
    errors = error_lines([one.job_id for one in jobs], load().database)
    columns = (_("job"), _("queue"), _("task"), Column(_("error"), is_message=True), _("failed"))
    rows = [
        (
            job_link(one.job_id),
            plain(one.queue),
            task_cell(one.task or ""),
            errors.get(one.job_id) or NOTHING,
            relative(one.failed_at, now) if one.failed_at else NOTHING,
        )
        for one in jobs
    ]
    return table_of(columns, rows)


def _start(request: HttpRequest, site: AdminSite, form: RedriveForm) -> HttpResponse:
    """Record the redrive, and who did it; then its page, or the list of jobs for those who may not see that."""
    try:
        run = redrive(**form.chosen(), **form.pace(), using=load().database)
    except (InvalidType, InvalidValue) as error:
        form.add_error(None, str(error))
        return show(request, site, form)
    except OutcomeUnknown:
        messages.error(
            request, gettext("Whether it was started is unknown: look at the redrives before you repeat it.")
        )
        return show(request, site, form)
    except (Error, DatabaseBusy):
        messages.error(request, gettext("The database could not be written to. Nothing was started; try again later."))
        return show(request, site, form)
    _log(request, run)
    text = ngettext(
        "Redrive %(id)d of %(n)d dead letter was started; workers carry it out.",
        "Redrive %(id)d of %(n)d dead letters was started; workers carry it out.",
        run.matched,
    )
    messages.success(request, text % {"id": run.id, "n": run.matched})
    if request.user.has_perm("jobqueue.view_redrive"):
        return HttpResponseRedirect(page_address("redrive", run.id))
    return HttpResponseRedirect(list_address("job") or index_address())


def _log(request: HttpRequest, run: Redriven) -> None:
    """Record it in the history of the redrive, and of the jobs that were chosen by their ids."""
    ids = (run.filters or {}).get("job_ids", [])
    entries = [log_entry(request, Redrive, run.id, f"redrive {run.id}", ADDITION)]
    entries += [log_entry(request, Job, job_id, f"job {job_id}", CHANGE, f"redrive {run.id}") for job_id in ids]
    LogEntry.objects.bulk_create(entries, batch_size=LOG_BATCH)


def log_stop(request: HttpRequest, run_id: int) -> None:
    """Record in the history of a redrive that this user stopped it."""
    log_entry(request, Redrive, run_id, f"redrive {run_id}", CHANGE, "stop").save()
