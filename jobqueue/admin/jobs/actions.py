"""The admin actions on jobs: each needs its own permission, and calls one function of transitions per job."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.core.exceptions import SuspiciousOperation
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue import transitions
from jobqueue.admin.dead_letters.redrive_page import form_of, show
from jobqueue.admin.page.addresses import link, page_address
from jobqueue.admin.page.formatting import plain
from jobqueue.admin.page.verb_admin import ACTION_MAX, Changed, VerbAdmin, apply, confirmation
from jobqueue.base.durations import parse_seconds
from jobqueue.base.validation import IDS_MAX
from jobqueue.conf import load
from jobqueue.exceptions import InvalidValue
from jobqueue.models import Job
from jobqueue.runs.alone import request_alone
from jobqueue.transitions.killing import jobs_beside

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

#: the name of the field with the time by which a lease is extended, its choices in seconds, and what lists extend by
SECONDS = "extend_seconds"
EXTENSIONS: dict[int, StrOrPromise] = {
    300: _("5 minutes"),
    900: _("15 minutes"),
    3600: _("1 hour"),
    21_600: _("6 hours"),
}
EXTEND_SECONDS = 900
#: the name of the field with the time after which a canceled job is killed, and what it says at first
KILL_AFTER, KILL_AFTER_TIME = "kill_after", "10s"
#: jobs beside those that are to be killed which the page names
BESIDE_SHOWN = 200


@admin.action(description=_("Retry now"), permissions=["retry"])
def retry(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Give FAILED and CANCELED jobs new attempts; make delayed jobs due now."""
    apply(model_admin, request, queryset, "retry", transitions.retry, _retried, allowed=("FAILED", "CANCELED"))


@admin.action(description=_("Cancel (running jobs are asked to stop)"), permissions=["cancel"])
def cancel(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End waiting jobs now, and ask running jobs to stop."""
    apply(model_admin, request, queryset, "cancel", transitions.cancel, _canceled, allowed=("READY", "PROCESSING"))


@admin.action(description=_("Stop for good (asks first, then kills the worker process)"), permissions=["cancel"])
def kill(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> HttpResponse | None:
    """Show the jobs beside the chosen ones; when that is confirmed, ask these to stop, and kill those that do not."""
    given = request.POST.get(KILL_AFTER, KILL_AFTER_TIME)
    if request.POST.get("confirm") == "yes":
        try:
            seconds = parse_seconds(given, zero=True)
        except InvalidValue as error:
            model_admin.message_user(request, str(error), messages.ERROR)
        else:
            verb = partial(transitions.cancel, kill_after_seconds=seconds)
            words = f"cancel kill_after={seconds:g}"
            apply(model_admin, request, queryset, words, verb, _canceled, allowed=("READY", "PROCESSING"))
            return None
    rows = model_admin.states_of(queryset.order_by("pk")[:ACTION_MAX])
    ids = [row_id for row_id, state in rows if state == "PROCESSING"]
    if not ids:
        model_admin.message_user(request, gettext("None of the chosen jobs runs."), messages.WARNING)
        return None
    count = ngettext("%(n)d running job", "%(n)d running jobs", len(ids)) % {"n": len(ids)}
    return confirmation(
        model_admin,
        request,
        "kill",
        ids,
        title=gettext("Stop %(what)s for good?") % {"what": count},
        submit=gettext("Stop for good"),
        notes=list(_killed_with(ids)),
        fields=[(KILL_AFTER, gettext("Kill after"), given)],
    )


@admin.action(description=_("Discard (remove from the dead letters)"), permissions=["discard"])
def discard(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End waiting and failed jobs as canceled."""
    apply(model_admin, request, queryset, "discard", transitions.discard, _discarded, allowed=("READY", "FAILED"))


@admin.action(description=_("Release lease (the job runs again elsewhere)"), permissions=["release"])
def release(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End the lease without using an attempt; its holder can no longer ack or fail the job."""
    apply(model_admin, request, queryset, "release", transitions.release_held, _released, allowed=("PROCESSING",))


@admin.action(description=_("Extend lease (nobody takes the job away for 15 minutes)"), permissions=["release"])
def extend(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Let the lease last longer, by the time that the page of a job sends with its button."""
    given = request.POST.get(SECONDS, str(EXTEND_SECONDS))
    if given not in map(str, EXTENSIONS):
        raise SuspiciousOperation("a time that no page offers")
    verb = partial(transitions.extend_held, seconds=float(given))
    apply(model_admin, request, queryset, "extend", verb, _extended, allowed=("PROCESSING",))


@admin.action(description=_("Run alone (each in a process of its own)"), permissions=["retry"])
def run_alone(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Have a worker run FAILED, CANCELED and held jobs, one after another, in a process for each."""
    apply(model_admin, request, queryset, "run alone", request_alone, _requested, allowed=("FAILED", "CANCELED"))


@admin.action(description=_("Redrive (canary, rate, limit; shows a preview first)"), permissions=["redrive"])
def redrive(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> HttpResponse | None:
    """Show the page that starts a redrive, filled with the chosen dead letters."""
    dead = queryset.filter(status=Job.Status.FAILED).order_by("pk").values_list("pk", flat=True)
    ids = list(dead[: IDS_MAX + 1])
    if not ids:
        model_admin.message_user(request, gettext("No chosen row is a dead letter."), messages.WARNING)
        return None
    if len(ids) > IDS_MAX:
        more = gettext("Only the first %(n)d dead letters were taken; choose more of them by a filter.")
        model_admin.message_user(request, more % {"n": IDS_MAX}, messages.WARNING)
    form = form_of({"job_ids": " ".join(map(str, ids[:IDS_MAX]))})
    return show(request, model_admin.admin_site, form)


ALL = (retry, cancel, kill, discard, release, extend, run_alone, redrive)
#: labels of the buttons on a job's page
BUTTONS: dict[str, StrOrPromise] = {
    "retry": _("Retry now"),
    "cancel": _("Cancel"),
    "kill": _("Stop for good"),
    "discard": _("Discard"),
    "extend": _("Extend lease"),
    "release": _("Release lease"),
    "run_alone": _("Run alone"),
}


def _retried(changed: Changed) -> Iterator[str]:
    gated = Job.objects.using(load().database).filter(pk__in=[row_id for row_id, _state in changed], gate__gt=0)
    waiting = gated.count()
    if now := len(changed) - waiting:
        yield ngettext("%(n)d job will run now.", "%(n)d jobs will run now.", now) % {"n": now}
    if waiting:
        yield ngettext(
            "%(n)d job will run when the earlier jobs of its ordering key have ended.",
            "%(n)d jobs will run when the earlier jobs of their ordering keys have ended.",
            waiting,
        ) % {"n": waiting}


def _requested(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "%(n)d job is to run in a process of its own; the page of redrives shows the result.",
        "%(n)d jobs are to run, each in a process of its own; the page of redrives shows the results.",
        len(changed),
    ) % {"n": len(changed)}


def _killed_with(ids: list[int]) -> Iterator[str]:
    """What happens, and the jobs beside those of these ids."""
    yield gettext("They are asked to stop. The worker process of one that still runs after this time is killed.")
    beside = jobs_beside(ids, using=load().database)
    if not beside:
        yield gettext("No other job runs in their processes now.")
        return
    yield gettext("These jobs run in the same processes now. They are killed too, and run again from their beginning:")
    for one in beside[:BESIDE_SHOWN]:
        yield link(page_address("job", one.id), f"#{one.id} {plain(one.task or one.queue)}")
    if len(beside) > BESIDE_SHOWN:
        yield gettext("and %(n)d more") % {"n": len(beside) - BESIDE_SHOWN}


def _canceled(changed: Changed) -> Iterator[str]:
    asked = sum(state == "PROCESSING" for _row_id, state in changed)
    if ended := len(changed) - asked:
        yield ngettext("%(n)d job was canceled.", "%(n)d jobs were canceled.", ended) % {"n": ended}
    if asked:
        yield ngettext("%(n)d running job was asked to stop.", "%(n)d running jobs were asked to stop.", asked) % {
            "n": asked
        }


def _discarded(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "%(n)d job was discarded and will not run.", "%(n)d jobs were discarded and will not run.", len(changed)
    ) % {"n": len(changed)}


def _released(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "%(n)d job was taken from its worker and will run again.",
        "%(n)d jobs were taken from their workers and will run again.",
        len(changed),
    ) % {"n": len(changed)}


def _extended(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "The lease of %(n)d job lasts longer now.", "The leases of %(n)d jobs last longer now.", len(changed)
    ) % {"n": len(changed)}
