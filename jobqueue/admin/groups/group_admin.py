"""The list of groups and workflows, the page of one, and its verbs: seal, cancel, and resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobqueue import groups
from jobqueue.admin.groups.members import (
    LIST_MAX,
    PAGE_MAX,
    Counts,
    by_state,
    counts_of,
    member_page,
    progress_bar,
    progress_words,
    some,
)
from jobqueue.admin.groups.members import State as MemberState
from jobqueue.admin.groups.workflow import NODES_MAX, graph
from jobqueue.admin.page.addresses import id_of
from jobqueue.admin.page.formatting import (
    NOTHING,
    StrOrPromise,
    ago_of,
    badge,
    hint,
    moment_of,
    plain,
    pretty,
    short_task,
    stacked,
)
from jobqueue.admin.page.readonly import COUNT_CAP, ConditionFilter, Facts, NewestFirst, capped
from jobqueue.admin.page.verb_admin import VerbAdmin, apply, needs
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.exceptions import JobQueueError
from jobqueue.models import JobGroup

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownGroup = WithAnnotations[JobGroup, Facts]
else:
    ShownGroup = JobGroup

State = JobGroup.State
LIVE = (State.OPEN, State.SEALED)


class GroupStateFilter(ConditionFilter):
    """Groups that have not ended, and those that have."""

    labels = {"live": _("not ended"), "ended": _("ended")}
    conditions = {"live": {"state__in": LIVE}, "ended": {"state": State.ENDED}}


class GroupList(NewestFirst):
    """A list with the counts of each group that is shown."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: Any = list(self.result_list)
        found = counts_of(rows, load().database, LIST_MAX)
        for group in rows:
            group.counts = found[group.pk]
        self.result_list = rows
        live = JobGroup.objects.using(load().database).filter(state__in=LIVE).order_by("state", "pk")
        count = vendor(live.db).force_index(live, "ix_group_state").values("pk")[:COUNT_CAP].count()
        self.tabs = self.state_tabs(GroupStateFilter, {"live": capped(count)})


NAME_CHARS = 120
#: nodes that the page before a resume names, of those that run at once and of those that wait
NAMES_MAX = 100


_SEALED = ngettext_lazy("%(n)d group was sealed.", "%(n)d groups were sealed.", "n")
_CANCELED = ngettext_lazy(
    "%(n)d group was canceled; its running members are asked to stop.",
    "%(n)d groups were canceled; their running members are asked to stop.",
    "n",
)


@admin.action(description=_("Seal (it ends with its last member)"), permissions=["cancel"])
def seal(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Let open groups end."""
    apply(model_admin, request, queryset, "seal", groups.seal, _SEALED, allowed=("open",))


@admin.action(description=_("Cancel (its waiting jobs end, running ones are asked to stop)"), permissions=["cancel"])
def cancel(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Cancel groups with their members."""
    apply(model_admin, request, queryset, "cancel", groups.cancel, _CANCELED, allowed=("open", "sealed"))


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


LABELS: Mapping[str, StrOrPromise] = {
    "open": _("open"),
    "sealed": _("sealed"),
    "canceling": _("being canceled"),
    "ended": _("ended"),
}
_BADGES = {"open": "scheduled", "sealed": "running", "canceling": "expired", "ended": "done"}
#: groups among which a name is looked for
SEARCHED = 10_000
_CALLBACKS = {"on_success": _("on success"), "on_failure": _("on failure"), "on_done": _("at the end")}


def state_of(group: JobGroup) -> str:
    """A key of LABELS."""
    if group.state == State.ENDED:
        return "ended"
    if group.canceled_at is not None:
        return "canceling"
    return "open" if group.state == State.OPEN else "sealed"


@admin.register(JobGroup)
class GroupAdmin(VerbAdmin):
    """Groups and workflows."""

    list_display = ("group_name", "kind", "group_state", "progress", "called_back", "begun", "ended")
    list_display_links = ("group_name",)
    list_filter = (GroupStateFilter,)
    list_class = GroupList
    change_list_template = "admin/jobqueue/group_list.html"
    actions = (seal, cancel, resume)
    search_fields = ("id",)
    search_help_text = _("Exact id of a group, or its name among the newest 10,000")
    fieldsets = (
        (None, {"fields": ("group_state", "next", "kind", "progress", "called_back", "data_shown")}),
        (_("Members"), {"fields": ("members", "nodes")}),
        (_("Times"), {"fields": ("created", "sealed", "canceled_when", "ended_when")}),
    )
    state_words = LABELS
    button_labels = {"seal": _("Seal"), "cancel": _("Cancel"), "resume": _("Resume...")}
    created, sealed = moment_of(JobGroup, "created_at"), moment_of(JobGroup, "sealed_at")
    canceled_when, ended_when = moment_of(JobGroup, "canceled_at"), moment_of(JobGroup, "ended_at")
    has_cancel_permission = needs("cancel_job")
    begun, ended = ago_of(JobGroup, "created_at", _("created")), ago_of(JobGroup, "ended_at", _("ended"))

    class Media:
        css = {"all": ("jobqueue/charts.css", "jobqueue/groups.css")}

    def get_urls(self) -> list[URLPattern]:
        """Also the list of the members in one state."""
        view = self.admin_site.admin_view(self.members_view)
        own = path("<int:group_id>/members/<str:state>/", view, name="jobqueue_jobgroup_members")
        return [own, *super().get_urls()]

    def members_view(self, request: HttpRequest, group_id: int, state: str) -> HttpResponse:
        """See member_page()."""
        return member_page(self, request, group_id, state)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Model | None:
        """The group with its counts, and whether this user may see its jobs."""
        found = super().get_object(request, object_id, from_field)
        if isinstance(found, JobGroup):
            shown: Any = found
            shown.counts = counts_of([found], load().database, PAGE_MAX)[found.pk]
            shown.shows_jobs = request.user.has_perm("jobqueue.view_job")
        return found

    def find(self, request: HttpRequest, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """A group by its id, or the newest ones by their exact name."""
        if (number := id_of(term)) is not None:
            return rows.filter(pk=number)
        newest = JobGroup.objects.using(load().database).order_by("-pk").values_list("pk", flat=True).first() or 0
        return rows.filter(name=term.replace("\x00", ""), pk__gt=newest - SEARCHED)

    def label_of(self, row: JobGroup) -> str:
        return str(row.name)

    def verbs_for(self, row: Any) -> tuple[str, ...]:
        """Seal an open one, cancel one that has not ended, and resume a workflow with nodes that did not end well."""
        found = {"open": ("seal", "cancel"), "sealed": ("cancel",)}.get(state_of(row), ())
        return (*found, *(["resume"] if _can_resume(row, row.counts) else []))

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
        return stacked(progress_bar(group.counts), progress_words(group.counts))

    @admin.display(description=_("what happens next"))
    def next(self, group: Any) -> str:
        state = state_of(group)
        if state == "ended":
            said = [gettext("Nothing: it has ended.")]
        elif state == "canceling":
            said = [gettext("It ends when its running members have stopped.")]
        elif state == "open":
            said = [gettext("Its members run. It does not end before it is sealed.")]
        elif group.if_failed == JobGroup.IfFailed.HOLD and (group.counts.failed or group.counts.canceled):
            said = [gettext("Nodes behind one that failed are held. Resume the workflow, or retry the failed job.")]
        else:
            said = [gettext("It ends with its last member. Then its callbacks are enqueued.")]
        if state == "ended" and _can_resume(group, group.counts):
            said.append(gettext("Resume it to run the nodes again that failed or were canceled."))
        return " ".join(said)

    @admin.display(description=_("callbacks"))
    def called_back(self, group: ShownGroup) -> str:
        """Their tasks, by what calls them."""
        callbacks: Any = group.callbacks if isinstance(group.callbacks, dict) else {}
        tasks = ((word, _task_of(callbacks[name])) for name, word in _CALLBACKS.items() if name in callbacks)
        said = ((word, hint(plain(short_task(task)), plain(task))) for word, task in tasks)
        return format_html_join("", "<div>{}: {}</div>", said) or NOTHING

    @admin.display(description=_("data"))
    def data_shown(self, group: ShownGroup) -> str:
        return pretty(group.data)

    @admin.display(description=_("by state"))
    def members(self, group: Any) -> str:
        return by_state(group, group.counts, links=group.shows_jobs)

    @admin.display(description=_("members"))
    def nodes(self, group: Any) -> str:
        """The newest failed members and the oldest unfinished ones; for a workflow its graph and the failed ones."""
        drawn = NOTHING if group.if_failed is None else graph(group, links=group.shows_jobs)
        if not group.shows_jobs:
            note = gettext("The permission to see jobs is needed to see which jobs they are.")
            return format_html('{}<p class="jobqueue-note">{}</p>', "" if drawn == NOTHING else drawn, note)
        if group.if_failed is None:
            return some(group)
        is_drawn = group.counts.total <= NODES_MAX
        jobs = some(group, [MemberState.FAILED] if is_drawn else [MemberState.FAILED, MemberState.OUTSTANDING])
        return drawn if jobs == NOTHING else format_html("{}{}", drawn, jobs)


def _can_resume(group: JobGroup, counts: Counts) -> bool:
    unwell = bool(counts.failed or counts.canceled)
    return group.if_failed is not None and unwell and state_of(group) != "canceling"


def _task_of(callback: Any) -> str:
    job = callback.get("job") if isinstance(callback, dict) else None
    return str(job.get("task") or NOTHING) if isinstance(job, dict) else NOTHING
