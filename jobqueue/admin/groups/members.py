"""The members of a group on its page: a few of each state that matters, and all nodes of a workflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.db.models import F
from django.db.models.functions import Right
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.groups.drawing import Node, draw
from jobqueue.admin.jobs.states import LABELS, state_of
from jobqueue.admin.page.addresses import page_address
from jobqueue.admin.page.formatting import NOTHING, badge, error_note, job_link, plain, short_task
from jobqueue.conf import load
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.masking import mask_tail
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup
from jobqueue.models.group import PARENTS_GATE

State = GroupMember.State
#: members of one state that are shown, and nodes of a workflow that are drawn and listed
SHOWN, NODES_MAX = 10, 300
_ERROR_CHARS = 500
_TABLE = """
<div class="jobqueue-wide"><table class="jobqueue-figures"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>
"""
_WAITS = ("parents", _("waits for its parents"))


def some(group: JobGroup) -> str:
    """The newest members that have failed, and the oldest that have not ended, each with its error or state."""
    using = load().database
    parts = []
    for state, title in ((State.FAILED, gettext("Failed")), (State.OUTSTANDING, gettext("Not ended"))):
        order = "-job_id" if state == State.FAILED else "job_id"
        rows = GroupMember.objects.using(using).filter(group_id=group.pk, state=state).order_by(order)
        ids = list(rows.values_list("job_id", flat=True)[:SHOWN])
        if ids:
            parts.append(format_html("<h3>{}</h3>{}", title, _table(ids, using)))
    return format_html_join("", "{}", ((part,) for part in parts)) if parts else NOTHING


def _table(ids: Sequence[int], using: str) -> str:
    """Rows of jobs, in the order of `ids`."""
    tail = Right("last_error", _ERROR_CHARS)
    rows = Job.objects.using(using).filter(pk__in=ids).defer("payload", "result", "last_error")
    found = {job.pk: job for job in rows.annotate(now=Selected(UtcNow()), error_tail=tail)}
    jobs = (found[job_id] for job_id in ids if job_id in found)
    body = format_html_join(
        "",
        '<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>',
        (
            (
                job_link(job.pk),
                plain(short_task(job.task)) if job.task else gettext("(handler)"),
                badge(state_of(job), str(LABELS[state_of(job)])),
                plain(error_note(mask_tail(job.error_tail or "", _ERROR_CHARS)), 200) or NOTHING,
            )
            for job in jobs
        ),
    )
    titles = (gettext("job"), gettext("task"), gettext("state"), gettext("last error"))
    head = format_html_join("", '<th scope="col">{}</th>', ((title,) for title in titles))
    return format_html(_TABLE, head, body)


def graph(group: JobGroup) -> str:
    """The drawing of a workflow and the table of its nodes; NODES_MAX of them."""
    using = load().database
    rows = GroupMember.objects.using(using).filter(group_id=group.pk).order_by("job_id")
    members = list(rows.values_list("job_id", "name", "state")[: NODES_MAX + 1])
    if not members:
        return NOTHING
    shown = members[:NODES_MAX]
    nodes = [*_nodes(shown, using)]
    parents = _parents([job_id for job_id, _, _ in shown], using)
    names = {node.job_id: plain(node.name, 100) for node in nodes}
    more = gettext("Only the first %(n)d nodes are shown.") % {"n": NODES_MAX} if len(members) > NODES_MAX else ""
    note = format_html('<p class="jobqueue-note">{}</p>', more) if more else ""
    drawn = draw(nodes, parents, title=gettext("The workflow"))
    return format_html("{}{}{}", drawn, note, _list(nodes, parents, names))


def _nodes(members: Sequence[tuple[int, str | None, int]], using: str) -> Iterator[Node]:
    rows = Job.objects.using(using).filter(pk__in=[job_id for job_id, _, _ in members])
    columns = ("status", "gate", "run_at", "lock_until", "task")
    jobs = {job.pk: job for job in rows.only(*columns).annotate(now=Selected(UtcNow()))}
    for job_id, name, state in members:
        job = jobs.get(job_id)
        if job is None:
            key = State(state).name.lower()
            yield Node(job_id, name or str(job_id), key, LABELS.get(key, key))
        elif job.status == Job.Status.READY and job.gate == PARENTS_GATE:
            yield Node(job_id, name or str(job_id), *_WAITS)
        else:
            yield Node(job_id, name or str(job_id), state_of(job), LABELS[state_of(job)])


def _parents(ids: Sequence[int], using: str) -> dict[int, list[int]]:
    """By node, its parents."""
    found: dict[int, list[int]] = {}
    pairs = GroupParent.objects.using(using).filter(child_id__in=ids).order_by(F("pk"))
    for parent, child in pairs.values_list("parent_id", "child_id"):
        found.setdefault(child, []).append(parent)
    return found


def _list(nodes: Sequence[Node], parents: dict[int, list[int]], names: dict[int, str]) -> str:
    body = format_html_join(
        "",
        '<tr><th scope="row"><a href="{}">{}</a></th><td>{}</td><td>{}</td></tr>',
        (
            (
                page_address("job", node.job_id),
                plain(node.name, 100),
                badge(node.state, str(node.word)),
                ", ".join(names.get(parent, str(parent)) for parent in parents.get(node.job_id, ())) or NOTHING,
            )
            for node in nodes
        ),
    )
    titles = (gettext("node"), gettext("state"), gettext("runs after"))
    head = format_html_join("", '<th scope="col">{}</th>', ((title,) for title in titles))
    table = format_html(_TABLE, head, mark_safe(body))
    frame = '<details class="jobqueue-nodes"><summary>{}</summary>{}</details>'
    return format_html(frame, gettext("The nodes as a table"), table)
