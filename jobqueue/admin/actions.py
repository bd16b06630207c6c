"""The admin's verbs: each asks for its own permission and calls one function of transitions per job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db import Error
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue import transitions
from jobqueue.conf import load
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Job

#: more jobs in one request would run into its time limit half-way
ACTION_MAX = 1000


@admin.action(description=_("Retry now"), permissions=["retry"])
def retry(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """FAILED and CANCELED jobs get a fresh allowance of attempts; delayed ones are due now."""
    _apply(model_admin, request, queryset, "retry", transitions.retry)


@admin.action(description=_("Cancel (running jobs are asked to stop)"), permissions=["cancel"])
def cancel(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """Waiting jobs end now, running ones are asked to stop."""
    _apply(model_admin, request, queryset, "cancel", transitions.cancel)


@admin.action(description=_("Discard (out of the dead letters)"), permissions=["discard"])
def discard(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """Waiting and failed jobs end as canceled."""
    _apply(model_admin, request, queryset, "discard", transitions.discard)


@admin.action(description=_("Release lease (the job runs again elsewhere)"), permissions=["release"])
def release(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """The lease is taken from its holder, whose answer will be refused; no attempt is used."""
    _apply(model_admin, request, queryset, "release", transitions.release_held)


ALL = (retry, cancel, discard, release)
#: on the buttons of a job's page
SHORT: dict[str, Any] = {
    "retry": _("Retry now"),
    "cancel": _("Cancel"),
    "discard": _("Discard"),
    "release": _("Release lease"),
}


def _apply(
    model_admin: Any, request: HttpRequest, queryset: QuerySet[Any], name: str, verb: Callable[..., bool]
) -> None:
    using = load().database
    rows = list(queryset.order_by("pk").values_list("pk", "status")[: ACTION_MAX + 1])
    taken, changed, refused = rows[:ACTION_MAX], [], 0
    try:
        for job_id, status in taken:
            if verb(job_id, using=using):
                changed.append((job_id, f"{name} (was {Job.Status(status).name})"))
            else:
                refused += 1
    except (Error, DatabaseBusy):
        text = gettext("The database could not be written to; the rest is unchanged. Try again later.")
        model_admin.message_user(request, text, messages.ERROR)
    finally:
        # Also when the loop broke off: what was changed is on record.
        model_admin.log_verb(request, changed)
    text = _counted(len(changed), refused)
    if len(rows) > ACTION_MAX:
        text += " " + gettext("Only the first %(n)d were taken; repeat the action for the rest.") % {"n": ACTION_MAX}
    model_admin.message_user(request, text, messages.SUCCESS if changed else messages.WARNING)


def _counted(changed: int, refused: int) -> str:
    text = ngettext("%(n)d job changed.", "%(n)d jobs changed.", changed) % {"n": changed}
    if refused:
        text += " " + ngettext(
            "%(n)d was left as it is: its state does not allow it.",
            "%(n)d were left as they are: their state does not allow it.",
            refused,
        ) % {"n": refused}
    return text
