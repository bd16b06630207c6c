"""The admin actions on jobs: each needs its own permission, and calls one function of transitions per job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue import transitions
from jobqueue.admin.dead_letters.redrive_form import form_of
from jobqueue.admin.dead_letters.redrive_page import show
from jobqueue.admin.page.apply import Changed, apply
from jobqueue.admin.page.verb_admin import VerbAdmin
from jobqueue.conf import load
from jobqueue.dead_letters.alone import request_alone
from jobqueue.dead_letters.filtering import IDS_MAX
from jobqueue.models import Job

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


@admin.action(description=_("Retry now"), permissions=["retry"])
def retry(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Give FAILED and CANCELED jobs new attempts; make delayed jobs due now."""
    apply(model_admin, request, queryset, "retry", transitions.retry, _retried, allowed=("FAILED", "CANCELED"))


@admin.action(description=_("Cancel (running jobs are asked to stop)"), permissions=["cancel"])
def cancel(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End waiting jobs now, and ask running jobs to stop."""
    apply(model_admin, request, queryset, "cancel", transitions.cancel, _canceled, allowed=("READY", "PROCESSING"))


@admin.action(description=_("Discard (remove from the dead letters)"), permissions=["discard"])
def discard(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End waiting and failed jobs as canceled."""
    apply(model_admin, request, queryset, "discard", transitions.discard, _discarded, allowed=("READY", "FAILED"))


@admin.action(description=_("Release lease (the job runs again elsewhere)"), permissions=["release"])
def release(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End the lease without using an attempt; its holder can no longer ack or fail the job."""
    apply(model_admin, request, queryset, "release", transitions.release_held, _released, allowed=("PROCESSING",))


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


ALL = (retry, cancel, discard, release, run_alone, redrive)
#: labels of the buttons on a job's page
BUTTONS: dict[str, StrOrPromise] = {
    "retry": _("Retry now"),
    "cancel": _("Cancel"),
    "discard": _("Discard"),
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
