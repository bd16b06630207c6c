"""The list of groups and workflows, and the page of one with its verbs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue import groups
from jobqueue.admin.groups.counts import LIST_MAX, PAGE_MAX, Counts, counts_of
from jobqueue.admin.groups.members import graph, some
from jobqueue.admin.groups.progress import bar, words
from jobqueue.admin.page.apply import Changed, apply
from jobqueue.admin.page.formatting import NOTHING, badge, hint, moment_of, plain, relative, stacked
from jobqueue.admin.page.readonly import ConditionFilter, Facts, NewestFirst
from jobqueue.admin.page.verb_admin import VerbAdmin, needs
from jobqueue.conf import load
from jobqueue.exceptions import JobQueueError
from jobqueue.models import JobGroup

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise, WithAnnotations

    ShownGroup = WithAnnotations[JobGroup, Facts]

State = JobGroup.State
NAME_CHARS = 120
LABELS: Mapping[str, StrOrPromise] = {
    "open": _("open"),
    "sealed": _("sealed"),
    "canceling": _("being canceled"),
    "ended": _("ended"),
}
_BADGES = {"open": "scheduled", "sealed": "running", "canceling": "expired", "ended": "done"}
_CALLBACKS = {"on_success": _("on success"), "on_failure": _("on failure"), "on_done": _("at the end")}


def state_of(group: JobGroup) -> str:
    """A key of LABELS."""
    if group.state == State.ENDED:
        return "ended"
    if group.canceled_at is not None:
        return "canceling"
    return "open" if group.state == State.OPEN else "sealed"


class GroupStateFilter(ConditionFilter):
    """Groups that have not ended, and those that have."""

    labels = {"live": _("not ended"), "ended": _("ended")}
    conditions = {"live": {"state__in": (State.OPEN, State.SEALED)}, "ended": {"state": State.ENDED}}


class GroupList(NewestFirst):
    """A list with the counts of each group that is shown."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: Any = list(self.result_list)
        found = counts_of(rows, load().database, LIST_MAX)
        for group in rows:
            group.counts = found[group.pk]
        self.result_list = rows


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
        "runs": [plain(name, NAME_CHARS) for name in found.runs],
        "waits": [plain(name, NAME_CHARS) for name in found.waits],
    }
    return TemplateResponse(request, "admin/jobqueue/resume.html", context)


def _sealed(changed: Changed) -> Iterator[str]:
    yield ngettext("%(n)d group was sealed.", "%(n)d groups were sealed.", len(changed)) % {"n": len(changed)}


def _canceled(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "%(n)d group was canceled; its running members are asked to stop.",
        "%(n)d groups were canceled; their running members are asked to stop.",
        len(changed),
    ) % {"n": len(changed)}


@admin.register(JobGroup)
class GroupAdmin(VerbAdmin):
    """Groups and workflows."""

    list_display = ("group_name", "kind", "group_state", "progress", "begun", "ended")
    list_display_links = ("group_name",)
    list_filter = (GroupStateFilter,)
    actions = (seal, cancel, resume)
    search_fields = ("id",)
    search_help_text = _("Exact id of a group, or its name among the newest 10,000")
    fieldsets = (
        (None, {"fields": ("group_state", "next", "kind", "progress", "called_back")}),
        (_("Members"), {"fields": ("nodes",)}),
        (_("Times"), {"fields": ("created", "sealed", "canceled_when", "ended_when")}),
    )
    state_words = LABELS
    button_labels = {"seal": _("Seal"), "cancel": _("Cancel"), "resume": _("Resume...")}
    created, sealed = moment_of(JobGroup, "created_at"), moment_of(JobGroup, "sealed_at")
    canceled_when, ended_when = moment_of(JobGroup, "canceled_at"), moment_of(JobGroup, "ended_at")
    has_cancel_permission = needs("cancel_job")

    class Media:
        css = {"all": ("jobqueue/charts.css", "jobqueue/groups.css")}

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[NewestFirst]:
        return GroupList

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.fieldsets

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        """A group by its id, or the newest ones by their exact name."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.isascii() and term.isdigit() and len(term) < 19:
            return queryset.filter(pk=int(term)), False
        newest = JobGroup.objects.using(load().database).order_by("-pk").values_list("pk", flat=True)
        oldest = list(newest[9_999:10_000])
        rows = queryset.filter(name=term.replace("\x00", ""))
        return (rows.filter(pk__gte=oldest[0]) if oldest else rows), False

    def label_of(self, row: JobGroup) -> str:
        return str(row.name)

    def verbs_for(self, row: JobGroup) -> tuple[str, ...]:
        """Seal an open one, cancel one that has not ended, and resume a workflow that did not end well."""
        found = {"open": ("seal", "cancel"), "sealed": ("cancel",)}.get(state_of(row), ())
        unwell = row.if_failed is not None and (row.state != State.ENDED or bool(row.failed or row.canceled))
        return (*found, *(["resume"] if unwell and state_of(row) != "canceling" else []))

    def states_of(self, rows: QuerySet[JobGroup]) -> list[tuple[int, str]]:
        return [(group.pk, state_of(group)) for group in rows.only("state", "canceled_at")]

    @admin.display(description=_("group"))
    def group_name(self, group: ShownGroup) -> str:
        return stacked(plain(group.name, NAME_CHARS), f"#{group.pk}")

    @admin.display(description=_("kind"))
    def kind(self, group: ShownGroup) -> str:
        if group.if_failed is None:
            return gettext("group")
        policy = str(JobGroup.IfFailed(group.if_failed).label)
        return gettext("workflow; if a node fails: %(policy)s") % {"policy": policy}

    @admin.display(description=_("state"))
    def group_state(self, group: ShownGroup) -> str:
        return badge(_BADGES[state_of(group)], str(LABELS[state_of(group)]))

    @admin.display(description=_("progress"))
    def progress(self, group: Any) -> str:
        found: Counts | None = getattr(group, "counts", None)
        counts = found or counts_of([group], load().database, PAGE_MAX)[group.pk]
        return stacked(bar(counts), words(counts))

    @admin.display(description=_("what happens next"))
    def next(self, group: ShownGroup) -> str:
        return {
            "open": gettext("Its members run. It does not end before it is sealed."),
            "sealed": gettext("It ends with its last member. Then its callbacks are enqueued."),
            "canceling": gettext("It ends when its running members have stopped."),
            "ended": gettext("Nothing: it has ended."),
        }[state_of(group)]

    @admin.display(description=_("callbacks"))
    def called_back(self, group: ShownGroup) -> str:
        """Their tasks, by what calls them."""
        callbacks: Any = group.callbacks if isinstance(group.callbacks, dict) else {}
        said = [f"{word}: {plain(_task_of(callbacks[name]))}" for name, word in _CALLBACKS.items() if name in callbacks]
        return ", ".join(map(str, said)) or NOTHING

    @admin.display(description=_("members"))
    def nodes(self, group: ShownGroup) -> str:
        return some(group) if group.if_failed is None else graph(group)

    @admin.display(description=_("created"))
    def begun(self, group: ShownGroup) -> str:
        return hint(relative(group.created_at, group.now), f"{group.created_at:%Y-%m-%d %H:%M:%S} UTC")

    @admin.display(description=_("ended"))
    def ended(self, group: ShownGroup) -> str:
        return NOTHING if group.ended_at is None else relative(group.ended_at, group.now)


def _task_of(callback: Any) -> str:
    job = callback.get("job") if isinstance(callback, dict) else None
    return str(job.get("task") or NOTHING) if isinstance(job, dict) else NOTHING
