"""The admin action that deletes ended jobs; it asks first, because nothing brings them back."""

from __future__ import annotations

from collections.abc import Iterator

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.states import ENDED
from jobqueue.admin.page.apply import ACTION_MAX, Changed, apply
from jobqueue.admin.page.verb_admin import VerbAdmin
from jobqueue.retention.deletion import delete_job

_STATES = tuple(status.name for status in ENDED)


@admin.action(description=_("Delete (ended jobs, with their attempts)"), permissions=["prune"])
def prune(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> HttpResponse | None:
    """Show how many of the chosen jobs have ended; delete these when that is confirmed."""
    if request.POST.get("confirm") == "yes":
        apply(model_admin, request, queryset, "delete", delete_job, _deleted, allowed=_STATES)
        return None
    rows = model_admin.states_of(queryset.order_by("pk")[: ACTION_MAX + 1])
    ids = [row_id for row_id, state in rows[:ACTION_MAX] if state in _STATES]
    if not ids:
        model_admin.message_user(request, gettext("None of the chosen jobs has ended."), messages.WARNING)
        return None
    notes = [gettext("The jobs and their failed attempts are deleted for good. Nothing can bring them back.")]
    if others := len(rows[:ACTION_MAX]) - len(ids):
        stay = ngettext(
            "%(n)d chosen job has not ended, and stays.", "%(n)d chosen jobs have not ended, and stay.", others
        )
        notes.append(stay % {"n": others})
    if len(rows) > ACTION_MAX:
        more = gettext("Only the first %(n)d of the chosen jobs are looked at; repeat the action for the others.")
        notes.append(more % {"n": ACTION_MAX})
    count = ngettext("%(n)d ended job", "%(n)d ended jobs", len(ids)) % {"n": len(ids)}
    context = model_admin.admin_site.each_context(request) | {
        "title": gettext("Delete %(what)s?") % {"what": count},
        "opts": model_admin.opts,
        "ids": ids,
        "checkbox": ACTION_CHECKBOX_NAME,
        "notes": notes,
    }
    return TemplateResponse(request, "admin/jobqueue/prune.html", context)


def _deleted(changed: Changed) -> Iterator[str]:
    yield ngettext("%(n)d job was deleted.", "%(n)d jobs were deleted.", len(changed)) % {"n": len(changed)}
