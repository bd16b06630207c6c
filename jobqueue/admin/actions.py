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

#: more jobs in one request would run into its time limit half-way
ACTION_MAX = 1000


@admin.action(description=_("Retry now"), permissions=["retry"])
def retry(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """FAILED and CANCELED jobs get a fresh allowance of attempts; delayed ones are due now."""
    apply(model_admin, request, queryset, "retry", transitions.retry)


@admin.action(description=_("Cancel (running jobs are asked to stop)"), permissions=["cancel"])
def cancel(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """Waiting jobs end now, running ones are asked to stop."""
    apply(model_admin, request, queryset, "cancel", transitions.cancel)


@admin.action(description=_("Discard (out of the dead letters)"), permissions=["discard"])
def discard(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """Waiting and failed jobs end as canceled."""
    apply(model_admin, request, queryset, "discard", transitions.discard)


@admin.action(description=_("Release lease (the job runs again elsewhere)"), permissions=["release"])
def release(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """The lease is taken from its holder, whose answer will be refused; no attempt is used."""
    apply(model_admin, request, queryset, "release", transitions.release_held)


ALL = (retry, cancel, discard, release)
#: on the buttons of a job's page
SHORT: dict[str, Any] = {
    "retry": _("Retry now"),
    "cancel": _("Cancel"),
    "discard": _("Discard"),
    "release": _("Release lease"),
}


def apply(
    model_admin: Any,
    request: HttpRequest,
    queryset: QuerySet[Any],
    name: str,
    verb: Callable[..., bool],
    count: Callable[[int], str] | None = None,
) -> None:
    """Call `verb` for each row, the first ACTION_MAX; say how many changed, and keep in the history which."""
    using = load().database
    # One more than is taken: to know whether there are more.
    rows = model_admin.words_of(queryset.order_by("pk")[: ACTION_MAX + 1])
    taken, changed, refused = rows[:ACTION_MAX], [], 0
    try:
        for row_id, word in taken:
            if verb(row_id, using=using):
                changed.append((row_id, f"{name} (was {word})"))
            else:
                refused += 1
    except (Error, DatabaseBusy):
        text = gettext("The database could not be written to; the rest is unchanged. Try again later.")
        model_admin.message_user(request, text, messages.ERROR)
    finally:
        # Also when the loop broke off: what was changed is on record.
        model_admin.log_verb(request, changed)
    text = (count or _jobs)(len(changed))
    if refused:
        text += " " + ngettext(
            "%(n)d was left as it is: its state does not allow it.",
            "%(n)d were left as they are: their state does not allow it.",
            refused,
        ) % {"n": refused}
    if len(rows) > ACTION_MAX:
        text += " " + gettext("Only the first %(n)d were taken; repeat the action for the rest.") % {"n": ACTION_MAX}
    model_admin.message_user(request, text, messages.SUCCESS if changed else messages.WARNING)


def _jobs(changed: int) -> str:
    return ngettext("%(n)d job changed.", "%(n)d jobs changed.", changed) % {"n": changed}
