"""The members of a group as tables of jobs, each with its state and the last line of its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet
from django.db.models.functions import Right
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.groups.counts import PAGE_MAX, Counts
from jobqueue.admin.jobs.states import LABELS, state_of
from jobqueue.admin.page.addresses import address_of, link
from jobqueue.admin.page.formatting import NOTHING, badge, error_note, job_link, plain, short_task
from jobqueue.admin.page.readonly import capped
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.masking import mask_tail
from jobqueue.models import GroupMember, Job, JobGroup
from jobqueue.models.group import HELD_BY_PARENTS, PARENTS_GATE

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

State = GroupMember.State
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
_ERROR_CHARS = 500
TABLE = """
<div class="jobqueue-wide"><table class="jobqueue-figures"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>
"""


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
    tail = Right("last_error", _ERROR_CHARS)
    rows = Job.objects.using(using).filter(pk__in=[job_id for job_id, _name in members])
    few = rows.defer("payload", "result", "last_error", "progress", "options")
    jobs = {job.pk: job for job in few.annotate(now=Selected(UtcNow()), error_tail=tail)}
    named = any(name is not None for _job_id, name in members)
    titles = (gettext("job"), *([gettext("node")] if named else []), gettext("task"), gettext("state"))
    head = format_html_join("", '<th scope="col">{}</th>', ((title,) for title in (*titles, gettext("last error"))))
    return format_html(
        TABLE, head, format_html_join("", "{}", ((_row(*one, jobs, state, named=named),) for one in members))
    )


def _row(job_id: int, name: str | None, jobs: Mapping[int, Any], state: int, *, named: bool) -> str:
    job = jobs.get(job_id)
    gone = (NOTHING, badge(BADGES[State(state)], str(WORDS[State(state)])), NOTHING)
    cells = _cells(job) if job is not None else gone
    cells = (plain(name or NOTHING, 100), *cells) if named else cells
    first = job_link(job_id) if job is not None else gettext("%(id)d (deleted)") % {"id": job_id}
    body = format_html_join("", "<td>{}</td>", ((cell,) for cell in cells))
    return format_html('<tr><th scope="row">{}</th>{}</tr>', first, body)


def look_of(job: Any) -> tuple[str, StrOrPromise]:
    """The state of a member as a key of drawings, and as a word: a node that waits is not ready for a worker."""
    if job.status != Job.Status.READY or job.gate != PARENTS_GATE:
        return state_of(job), LABELS[state_of(job)]
    return ("held", _("held: a parent failed")) if job.wait_reason == HELD_BY_PARENTS else _WAITS


def _cells(job: Any) -> tuple[str, ...]:
    return (
        plain(short_task(job.task)) if job.task else gettext("(handler)"),
        badge(*map(str, look_of(job))),
        plain(error_note(mask_tail(job.error_tail or "", _ERROR_CHARS)), 200) or NOTHING,
    )
