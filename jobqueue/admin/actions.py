"""The admin's verbs: each asks for its own permission and calls one function of transitions per job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobqueue import transitions
from jobqueue.conf import load

#: more jobs in one request would run into its time limit half-way
ACTION_MAX = 1000


@admin.action(description=_("Retry now"), permissions=["retry"])
def retry(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """FAILED and CANCELED jobs get a fresh allowance of attempts; delayed ones are due now."""
    _apply(model_admin, request, queryset, transitions.retry)


@admin.action(description=_("Cancel"), permissions=["cancel"])
def cancel(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """Waiting jobs end now, running ones are asked to stop."""
    _apply(model_admin, request, queryset, transitions.cancel)


@admin.action(description=_("Discard (out of the dead letters)"), permissions=["discard"])
def discard(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """Waiting and failed jobs end as canceled."""
    _apply(model_admin, request, queryset, transitions.discard)


@admin.action(description=_("Release lease (the job runs again elsewhere)"), permissions=["release"])
def release(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> None:
    """The lease is taken from its holder, whose answer will be refused; no attempt is used."""
    _apply(model_admin, request, queryset, transitions.release_held)


def _apply(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any], verb: Callable[..., bool]) -> None:
    using = load().database
    ids = list(queryset.order_by("pk").values_list("pk", flat=True)[: ACTION_MAX + 1])
    rest = len(ids) > ACTION_MAX
    changed = [job_id for job_id in ids[:ACTION_MAX] if verb(job_id, using=using)]
    for job_id in changed:
        model_admin.log_verb(request, job_id, verb.__name__)
    left = len(ids[:ACTION_MAX]) - len(changed)
    text = ngettext("%(n)d job changed.", "%(n)d jobs changed.", len(changed)) % {"n": len(changed)}
    if left:
        text += " " + ngettext(
            "%(n)d was left as it is: its state does not allow it.",
            "%(n)d were left as they are: their state does not allow it.",
            left,
        ) % {"n": left}
    if rest:
        text += " " + _t("Only the first %(n)d were taken; repeat the action for the rest.") % {"n": ACTION_MAX}
    model_admin.message_user(request, text, messages.SUCCESS if changed else messages.WARNING)
