"""A workflow on its page: drawn and as a table, or with very many nodes by the layers of the drawing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from django.utils.html import format_html
from django.utils.translation import gettext

from jobqueue.admin.groups.drawing import Node, depths, draw, legend
from jobqueue.admin.groups.members import BADGES, WORDS, look_of
from jobqueue.admin.page.addresses import link, page_address
from jobqueue.admin.page.formatting import NOTHING, badge, number, plain
from jobqueue.admin.page.tables import Column, table_html
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup

State = GroupMember.State
#: nodes that are drawn
NODES_MAX = 300
#: with more nodes, or more pairs of parent and child, a page does not read them all and shows no layers
SUMMED_MAX, PAIRS_MAX = 3000, 10_000
LAYERS_SHOWN = 100
_NAME_CHARS = 100
_PARENTS_SHOWN = 20

Member = tuple[int, str | None, int]
Parents = Mapping[int, Sequence[int]]


def graph(group: JobGroup, *, links: bool) -> str:
    """The drawing of a workflow with its legend and the table of its nodes; of more than NODES_MAX nodes the layers.

    `links`: whether nodes lead to the pages of their jobs.
    """
    using = load().database
    # In the order of the index; a node has a larger id than its parents.
    rows = GroupMember.objects.using(using).filter(group_id=group.pk).order_by("state", "job_id")
    rows = vendor(using).force_index(rows, "ix_group_member")
    members: list[Member] = list(rows.values_list("job_id", "name", "state")[: NODES_MAX + 1])
    if not members:
        return NOTHING
    if len(members) > NODES_MAX:
        # Without their names, the index has all that is read.
        return _summary(group.pk, list(rows.values_list("job_id", "state")[: SUMMED_MAX + 1]), using)
    members.sort()
    nodes = [*_nodes(members, using)]
    parents = _parents([node.job_id for node in nodes], using)
    drawn = draw(nodes, parents, title=gettext("The workflow"), links=links)
    return format_html("{}{}{}", drawn, legend(nodes), _list(nodes, parents, links=links))


def _nodes(members: Sequence[Member], using: str) -> Iterator[Node]:
    rows = Job.objects.using(using).filter(pk__in=[job_id for job_id, _name, _state in members])
    columns = ("status", "gate", "run_at", "lock_until", "wait_reason")
    jobs = {job.pk: job for job in rows.only(*columns).annotate(now=Selected(UtcNow()))}
    for job_id, name, state in members:
        job = jobs.get(job_id)
        look = (BADGES[State(state)], WORDS[State(state)]) if job is None else look_of(job)
        yield Node(job_id, name or str(job_id), *look)


def _parents(ids: Sequence[int], using: str) -> dict[int, list[int]]:
    """Map each node to its parents."""
    found: dict[int, list[int]] = {}
    pairs = GroupParent.objects.using(using).filter(child_id__in=ids)
    for parent, child in sorted(pairs.values_list("parent_id", "child_id")):
        found.setdefault(child, []).append(parent)
    return found


def _list(nodes: Sequence[Node], parents: Parents, *, links: bool) -> str:
    names = {node.job_id: plain(node.name, _NAME_CHARS) for node in nodes}
    rows = [
        (
            _linked(node.job_id, names[node.job_id], links=links),
            badge(node.state, str(node.word)),
            _named(parents.get(node.job_id, ()), names),
        )
        for node in nodes
    ]
    table = table_html((gettext("node"), gettext("state"), gettext("runs after")), rows)
    frame = '<details class="jobqueue-nodes"><summary>{}</summary>{}</details>'
    return format_html(frame, gettext("The nodes as a table"), table)


def _linked(job_id: int, name: str, *, links: bool) -> str:
    return link(page_address("job", job_id), name) if links else name


def _named(parents: Sequence[int], names: Mapping[int, str]) -> str:
    shown = [names.get(parent, str(parent)) for parent in parents[:_PARENTS_SHOWN]]
    more = len(parents) - len(shown)
    return ", ".join([*shown, *([gettext("%(n)d more") % {"n": more}] if more else [])]) or NOTHING


def _summary(group_id: int, members: Sequence[tuple[int, int]], using: str) -> str:
    """How many nodes of each layer are in which state."""
    pairs = GroupParent.objects.using(using).filter(group_id=group_id).values_list("parent_id", "child_id")
    found = list(pairs[: PAIRS_MAX + 1]) if len(members) <= SUMMED_MAX else []
    if len(members) > SUMMED_MAX or len(found) > PAIRS_MAX:
        text = gettext("The workflow has too many nodes to be drawn, or to be shown by layers.")
        return format_html('<p class="jobqueue-note">{}</p>', text)
    parents: dict[int, list[int]] = {}
    for parent, child in found:
        parents.setdefault(child, []).append(parent)
    layers = depths(sorted(job_id for job_id, _state in members), parents)
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for job_id, state in members:
        counts[layers[job_id]][state] += 1
    text = gettext("More than %(n)d nodes are not drawn. This is how many nodes of each layer are in which state.")
    said = [text % {"n": NODES_MAX}]
    if len(counts) > LAYERS_SHOWN:
        said.append(gettext("Only the first %(n)d layers are shown.") % {"n": LAYERS_SHOWN})
    titles = (gettext("nodes"), *map(str, WORDS.values()))
    rows = [
        (number(layer + 1), *map(number, (of.total(), *(of[state] for state in WORDS))))
        for layer, of in sorted(counts.items())[:LAYERS_SHOWN]
    ]
    table = table_html((gettext("layer"), *(Column(title, is_number=True) for title in titles)), rows)
    return format_html('<p class="jobqueue-note">{}</p>{}', " ".join(said), table)
