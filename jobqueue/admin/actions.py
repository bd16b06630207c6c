"""The admin actions on jobs: each needs its own permission, and calls one function of transitions per job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.db import Error
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue import transitions
from jobqueue.admin.verb_admin import VerbAdmin
from jobqueue.conf import load
from jobqueue.exceptions import DatabaseBusy

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

#: rows of one request; with more rows it might reach its time limit half-way
ACTION_MAX = 1000


@admin.action(description=_("Retry now"), permissions=["retry"])
def retry(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Give FAILED and CANCELED jobs new attempts; make delayed jobs due now."""
    apply(model_admin, request, queryset, "retry", transitions.retry)


@admin.action(description=_("Cancel (running jobs are asked to stop)"), permissions=["cancel"])
def cancel(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End waiting jobs now, and ask running jobs to stop."""
    apply(model_admin, request, queryset, "cancel", transitions.cancel)


@admin.action(description=_("Discard (remove from the dead letters)"), permissions=["discard"])
def discard(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End waiting and failed jobs as canceled."""
    apply(model_admin, request, queryset, "discard", transitions.discard)


@admin.action(description=_("Release lease (the job runs again elsewhere)"), permissions=["release"])
def release(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """End the lease without using an attempt; its holder can no longer ack or fail the job."""
    apply(model_admin, request, queryset, "release", transitions.release_held)


ALL = (retry, cancel, discard, release)
#: labels of the buttons on a job's page
BUTTONS: dict[str, StrOrPromise] = {
    "retry": _("Retry now"),
    "cancel": _("Cancel"),
    "discard": _("Discard"),
    "release": _("Release lease"),
}


def apply(
    model_admin: VerbAdmin,
    request: HttpRequest,
    queryset: QuerySet[Model],
    name: str,
    verb: Callable[..., bool],
    count: Callable[[int], str] | None = None,
) -> None:
    """Call `verb` for the first ACTION_MAX rows; report how many changed, and record which ones in the history."""
    using = load().database
    # One row more than is used shows whether there are more.
    rows = model_admin.states_of(queryset.order_by("pk")[: ACTION_MAX + 1])
    chosen, changed, refused = rows[:ACTION_MAX], [], 0
    try:
        for row_id, state in chosen:
            if verb(row_id, using=using):
                changed.append((row_id, f"{name} (was {state})"))
            else:
                refused += 1
    except (Error, DatabaseBusy):
        text = gettext("The database could not be written to. The other rows are unchanged; try again later.")
        model_admin.message_user(request, text, messages.ERROR)
    finally:
        # Rows that were changed before an error are recorded too.
        model_admin.log_verb(request, changed)
    text = (count or _jobs)(len(changed))
    if refused:
        text += " " + ngettext(
            "%(n)d was not changed, because its state does not allow it.",
            "%(n)d were not changed, because their state does not allow it.",
            refused,
        ) % {"n": refused}
    if len(rows) > ACTION_MAX:
        text += " " + gettext("Only the first %(n)d were processed; repeat the action for the others.") % {
            "n": ACTION_MAX
        }
    model_admin.message_user(request, text, messages.SUCCESS if changed else messages.WARNING)


def _jobs(changed: int) -> str:
    return ngettext("%(n)d job changed.", "%(n)d jobs changed.", changed) % {"n": changed}
