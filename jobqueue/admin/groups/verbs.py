"""What can be done with groups: seal and cancel them, and resume a workflow after a page that says what would run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue import groups
from jobqueue.admin.page.apply import Changed, apply
from jobqueue.admin.page.formatting import plain
from jobqueue.admin.page.verb_admin import VerbAdmin
from jobqueue.conf import load
from jobqueue.exceptions import JobQueueError

NAME_CHARS = 120
#: nodes that the page before a resume names, of those that run at once and of those that wait
NAMES_MAX = 100


@admin.action(description=_("Seal (it ends with its last member)"), permissions=["cancel"])
def seal(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Let open groups end."""
    apply(model_admin, request, queryset, "seal", groups.seal, _sealed, allowed=("open",))


@admin.action(description=_("Cancel (its waiting jobs end, running ones are asked to stop)"), permissions=["cancel"])
def cancel(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Cancel groups with their members."""
    apply(model_admin, request, queryset, "cancel", groups.cancel, _canceled, allowed=("open", "sealed"))


@admin.action(description=_("Resume (nodes that failed or were canceled run again)"), permissions=["retry"])
def resume(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> HttpResponse | None:
    """Show which nodes of one workflow would run again; do it when that was confirmed."""
    using, ids = load().database, list(queryset.order_by("pk").values_list("pk", flat=True)[:2])
    if len(ids) != 1:
        model_admin.message_user(request, gettext("Choose one workflow."), messages.WARNING)
        return None
    confirmed = request.POST.get("confirm") == "yes"
    try:
        found = groups.resume(ids[0], dry_run=not confirmed, using=using)
    except JobQueueError as error:
        model_admin.message_user(request, plain(error), messages.ERROR)
        return None
    if not found.runs and not found.waits:
        text = gettext("No node has failed or was canceled: nothing was changed.")
        model_admin.message_user(request, text, messages.WARNING)
        return None
    if confirmed:
        model_admin.log_verb(request, [(ids[0], f"resume ({len(found.runs) + len(found.waits)} nodes)")])
        count = len(found.runs) + len(found.waits)
        text = ngettext("%(n)d node will run again.", "%(n)d nodes will run again.", count) % {"n": count}
        model_admin.message_user(request, text, messages.SUCCESS)
        return None
    context = {
        **model_admin.admin_site.each_context(request),
        "title": gettext("Resume workflow %(id)d") % {"id": ids[0]},
        "opts": model_admin.opts,
        "id": ids[0],
        "runs": _names(found.runs),
        "waits": _names(found.waits),
    }
    return TemplateResponse(request, "admin/jobqueue/resume.html", context)


def _names(nodes: Sequence[str]) -> list[str]:
    """The first NAMES_MAX names, and how many more there are."""
    shown = [plain(name, NAME_CHARS) for name in nodes[:NAMES_MAX]]
    more = len(nodes) - len(shown)
    if more:
        shown.append(ngettext("and %(n)d more node", "and %(n)d more nodes", more) % {"n": more})
    return shown


def _sealed(changed: Changed) -> Iterator[str]:
    yield ngettext("%(n)d group was sealed.", "%(n)d groups were sealed.", len(changed)) % {"n": len(changed)}


def _canceled(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "%(n)d group was canceled; its running members are asked to stop.",
        "%(n)d groups were canceled; their running members are asked to stop.",
        len(changed),
    ) % {"n": len(changed)}
