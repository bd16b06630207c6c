"""The members of a group: how many are in each state, as a bar and in words, and as tables and a page of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import BigIntegerField, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.states import LABELS, state_of
from jobqueue.admin.page.addresses import address_of, id_of, link, page_address
from jobqueue.admin.page.formatting import (
    NOTHING,
    StrOrPromise,
    badge,
    error_line,
    error_tail,
    job_link,
    number,
    plain,
    short_task,
)
from jobqueue.admin.page.readonly import capped
from jobqueue.admin.page.tables import Column, table_html
from jobqueue.admin.page.verb_admin import VerbAdmin
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.expressions import Slot
from jobqueue.db.fields import TinyIntegerField
from jobqueue.db.prepared import Prepared, prepare_count
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.models.group import HELD_BY_PARENTS, PARENTS_GATE

State = GroupMember.State
#: members of one state are counted up to this, in a list and on the page of one group
LIST_MAX, PAGE_MAX = 1000, 10_000
_NAMES = {State.OUTSTANDING: "outstanding", State.DONE: "done", State.FAILED: "failed", State.CANCELED: "canceled"}


@dataclass(slots=True)
class Counts:
    """The members of one group by state. `most`: counts stop there; None: all of them are exact."""

    outstanding: int = 0
    done: int = 0
    failed: int = 0
    canceled: int = 0
    most: int | None = None

    @property
    def total(self) -> int:
        """All members, or at least so many."""
        return self.outstanding + self.done + self.failed + self.canceled

    @property
    def capped(self) -> bool:
        """Whether there are more than the counts say."""
        most = self.most
        return most is not None and max(self.outstanding, self.done, self.failed, self.canceled) >= most


def counts_of(groups: Sequence[JobGroup], using: str, most: int) -> dict[int, Counts]:
    """The counts of each of these groups, by id. A group that has ended has the counts written at its end."""
    found = {group.pk: _written(group) for group in groups}
    live = [group.pk for group in groups if group.state != JobGroup.State.ENDED]
    for group_id in live:
        found[group_id] = Counts(most=most)
    runs = [{"group_id": group_id, "state": int(state)} for group_id in live for state in _NAMES]
    for count, group_id, state in _counted(using, most).seek_each(runs, 20) if runs else ():
        if count:
            setattr(found[group_id], _NAMES[State(state)], count)
    return found


def _written(group: JobGroup) -> Counts:
    done, failed, canceled = (count or 0 for count in (group.done, group.failed, group.canceled))
    return Counts(max(0, (group.total or 0) - done - failed - canceled), done, failed, canceled)


@cache
def _counted(using: str, most: int) -> Prepared:
    rows = GroupMember.objects.using(using).filter(
        group_id=Slot("group_id", BigIntegerField()), state=Slot("state", TinyIntegerField())
    )
    ordered = vendor(using).force_index(rows.order_by("job_id"), "ix_group_member")
    return prepare_count(ordered.values_list("group_id", "state")[:most], "group_id", "state")


BAR_WIDTH, BAR_HEIGHT = 120, 8


def progress_bar(counts: Counts) -> str:
    """Done, failed and canceled members as parts of all; hidden from those who read the figures beside it."""
    total = max(1, counts.total)
    parts, left = [], 0.0
    for kind, count in (("ok", counts.done), ("dead", counts.failed), ("canceled", counts.canceled)):
        width = BAR_WIDTH * count / total
        if count:
            parts.append(
                format_html(
                    '<rect class="jobqueue-c-{}" x="{}" y="0" width="{}" height="{}"/>',
                    kind,
                    f"{left:.1f}",
                    f"{max(1.0, width):.1f}",
                    BAR_HEIGHT,
                )
            )
        left += width
    frame = '<svg class="jobqueue-progress" width="{}" height="{}" viewBox="0 0 {} {}" aria-hidden="true">{}</svg>'
    return format_html(
        frame, BAR_WIDTH, BAR_HEIGHT, BAR_WIDTH, BAR_HEIGHT, format_html("{}" * len(parts), *parts) if parts else ""
    )


def progress_words(counts: Counts) -> str:
    """Such as "80 of 100 done, 2 failed"."""
    more = "+" if counts.capped else ""
    facts = {"done": number(counts.done), "total": number(counts.total) + more}
    said = [gettext("%(done)s of %(total)s done") % facts]
    if counts.failed:
        said.append(gettext("%(n)s failed") % {"n": number(counts.failed)})
    if counts.canceled:
        said.append(gettext("%(n)s canceled") % {"n": number(counts.canceled)})
    return ", ".join(said)


#: members of one state on the page of a group
SHOWN = 10
#: in the order in which a page has them
WORDS = {
    State.OUTSTANDING: _("not ended"),
    State.FAILED: _("failed"),
    State.CANCELED: _("canceled"),
    State.DONE: _("done"),
}
BADGES = {State.OUTSTANDING: "scheduled", State.FAILED: "failed", State.CANCELED: "canceled", State.DONE: "done"}
_WAITS = ("parents", _("waits for its parents"))


def members_of(group_id: int, state: int, using: str, *, newest: bool) -> QuerySet[GroupMember]:
    """The members in one state, in the order of their jobs. An index gives this order, however many there are."""
    rows = GroupMember.objects.using(using).filter(group_id=group_id, state=state)
    return vendor(using).force_index(rows.order_by("-job_id" if newest else "job_id"), "ix_group_member")


def by_state(group: JobGroup, counts: Counts, *, links: bool) -> str:
    """The number of members in each state; with `links` each leads to these members."""
    parts = []
    for state, word in WORDS.items():
        count = getattr(counts, state.name.lower())
        if count or state == State.OUTSTANDING:
            text = f"{capped(count, PAGE_MAX if counts.most else count + 1)} {word}"
            parts.append(link(members_address(group.pk, state), text) if links else text)
    return format_html_join(" · ", "{}", ((part,) for part in parts))


def members_address(group_id: int, state: int) -> str:
    """The address of the list of the members in one state."""
    return address_of("jobgroup_members", group_id, State(state).name.lower())


def some(group: JobGroup, states: Sequence[int] = (State.FAILED, State.OUTSTANDING)) -> str:
    """The newest members that have failed, and the oldest that have not ended, each with its error or state."""
    using = load().database
    titles = {State.FAILED: gettext("Failed"), State.OUTSTANDING: gettext("Not ended")}
    parts = []
    for state in states:
        rows = members_of(group.pk, state, using, newest=state == State.FAILED)
        if members := list(rows.values_list("job_id", "name")[:SHOWN]):
            parts.append(format_html("<h3>{}</h3>{}", titles[State(state)], table(members, State(state), using)))
    return format_html_join("", "{}", ((part,) for part in parts)) if parts else NOTHING


def table(members: Sequence[tuple[int, str | None]], state: int, using: str) -> str:
    """Rows of (job, name of the node) in their order, all of them in this state; a job may have been deleted."""
    rows = Job.objects.using(using).filter(pk__in=[job_id for job_id, _name in members])
    few = rows.defer("payload", "result", "last_error", "progress", "options")
    jobs = {job.pk: job for job in few.annotate(now=Selected(UtcNow()), error_tail=error_tail())}
    titles = [*map(Column, (_("job"), _("node"), _("task"), _("state"))), Column(_("last error"), is_message=True)]
    cells = [
        [_name(job_id, jobs), plain(name or NOTHING, 100), *_cells(jobs.get(job_id), state)] for job_id, name in members
    ]
    if not any(name is not None for _job_id, name in members):
        del titles[1]
        for row in cells:
            del row[1]
    return table_html(titles, cells)


def _name(job_id: int, jobs: Mapping[int, Any]) -> str:
    return job_link(job_id) if job_id in jobs else gettext("%(id)d (deleted)") % {"id": job_id}


def look_of(job: Any) -> tuple[str, StrOrPromise]:
    """The state of a member as a key of drawings, and as a word: a node that waits is not ready for a worker."""
    if job.status != Job.Status.READY or job.gate != PARENTS_GATE:
        return state_of(job), LABELS[state_of(job)]
    return ("held", _("held: a parent failed")) if job.wait_reason == HELD_BY_PARENTS else _WAITS


def _cells(job: Any, state: int) -> tuple[str, str, str]:
    """Task, state and last error; of a job that has been deleted the state alone."""
    if job is None:
        return NOTHING, badge(BADGES[State(state)], str(WORDS[State(state)])), NOTHING
    task = plain(short_task(job.task)) if job.task else gettext("(handler)")
    return task, badge(*map(str, look_of(job))), error_line(job.error_tail) or NOTHING


#: members on one page of the list of those in one state
PAGE = 100
_STATES = {state.name.lower(): state for state in GroupMember.State}


def member_page(model_admin: VerbAdmin, request: HttpRequest, group_id: int, state: str) -> HttpResponse:
    """The page; ?before=ID leads to the members with smaller ids. Needs the permissions to see groups and jobs."""
    if not model_admin.has_view_permission(request) or not request.user.has_perm("jobqueue.view_job"):
        raise PermissionDenied
    using = load().database
    group = JobGroup.objects.using(using).filter(pk=group_id).only("name").first() if group_id < 2**63 else None
    if group is None or state not in _STATES:
        raise Http404
    wanted = _STATES[state]
    rows = members_of(group_id, wanted, using, newest=True)
    before = id_of(request.GET.get("before", ""))
    if before is not None:
        rows = rows.filter(job_id__lt=before)
    members = list(rows.values_list("job_id", "name")[: PAGE + 1])
    shown, first = members[:PAGE], members_address(group_id, wanted)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": f"{plain(group.name, 80)}: {WORDS[wanted]}",
        "opts": model_admin.opts,
        "row_name": capfirst(gettext("group %(id)d") % {"id": group_id}),
        "back": page_address("jobgroup", group_id),
        "states": [(capfirst(str(word)), members_address(group_id, key), key == wanted) for key, word in WORDS.items()],
        "table": table(shown, wanted, using) if shown else "",
        "newest": first if before is not None else "",
        "older": f"{first}?before={shown[-1][0]}" if len(members) > PAGE else "",
    }
    return TemplateResponse(request, "admin/jobqueue/group_members.html", context)
