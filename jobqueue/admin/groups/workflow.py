"""A workflow on its page: drawn and as a table, or with very many nodes by the layers of the drawing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple
from unicodedata import east_asian_width

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext

from jobqueue.admin.groups.members import BADGES, WORDS, look_of
from jobqueue.admin.page.addresses import link, page_address
from jobqueue.admin.page.formatting import NOTHING, StrOrPromise, badge, number, plain
from jobqueue.admin.page.tables import Column, table_html
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.models import GroupMember, GroupParent, Job, JobGroup

#: how often the layers are put in order, from the left and from the right in turn
SWEEPS = 8
#: how many places in layers arrows may take; more would need more room than nodes, so they pass behind boxes then
PASSES_MAX = 1000

Parents = Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The layers from the left, each from the top; and the layer in which each node has its box.

    If a node also stands in layers behind its own, its arrows pass through these layers.
    """

    layers: Sequence[Sequence[int]]
    own: Mapping[int, int]


def arrange(nodes: Sequence[int], parents: Parents) -> Layout:
    """The places of all nodes. The same nodes and parents give the same places.

    Parents that are not among the nodes do not count.
    """
    known = {*nodes}
    ups = {node: [parent for parent in parents.get(node, ()) if parent in known] for node in nodes}
    own = depths(nodes, ups)
    layers: list[list[int]] = [[] for _ in range(1 + max(own.values(), default=-1))]
    for node in nodes:
        layers[own[node]].append(node)
    _pass(layers, own, ups)
    downs: dict[int, list[int]] = {node: [] for node in nodes}
    for node, above in ups.items():
        for parent in above:
            downs[parent].append(node)
    rows = [_rows(layer) for layer in layers]
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        for rank in range(1, len(layers)) if forward else range(len(layers) - 2, -1, -1):
            near = _neighbours(layers[rank], rank, own, ups if forward else downs, forward=forward)
            _order(layers[rank], near, rows[rank], rows[rank - 1 if forward else rank + 1])
            rows[rank] = _rows(layers[rank])
    return Layout(layers, own)


def depths(nodes: Sequence[int], parents: Parents) -> dict[int, int]:
    """The layer of each node, from 0. Parents that are not among the nodes do not count."""
    known = {*nodes}
    ups = {node: [parent for parent in parents.get(node, ()) if parent in known] for node in nodes}
    try:
        # A node that another one has added is younger than the nodes that wait for both.
        order = [*TopologicalSorter(ups).static_order()]
    except CycleError:
        # Plain SQL has written them.
        order = [*nodes]
    found: dict[int, int] = {}
    for node in order:
        found[node] = 1 + max((found[parent] for parent in ups[node] if parent in found), default=-1)
    return {node: found[node] for node in nodes}


def _pass(layers: list[list[int]], own: Mapping[int, int], ups: Parents) -> None:
    """Give the arrows of each node one place in each layer that they pass, so that no box hides them."""
    last = dict(own)
    for node, above in ups.items():
        for parent in above:
            last[parent] = max(last[parent], own[node] - 1)
    if sum(last[node] - own[node] for node in own) > PASSES_MAX:
        return
    for node, end in last.items():
        for rank in range(own[node] + 1, end + 1):
            layers[rank].append(node)


def _rows(layer: Sequence[int]) -> dict[int, float]:
    """Where each node of a layer stands, from 0 to 1."""
    return {node: (row + 0.5) / len(layer) for row, node in enumerate(layer)}


class _Near(dict[int, Sequence[int]]):
    """The neighbours of nodes in the next layer; a node without an entry is its own neighbour."""

    def __missing__(self, node: int) -> Sequence[int]:
        return (node,)


def _neighbours(layer: Sequence[int], rank: int, own: Mapping[int, int], of: Parents, *, forward: bool) -> _Near:
    """Map each node of layer `rank` to its neighbours `of` the layer before it (parents) or behind it (children)."""
    if forward:
        return _Near({node: of[node] for node in layer if own[node] == rank})
    return _Near({node: [*(child for child in of[node] if own[child] == rank + 1), node] for node in layer})


def _order(layer: list[int], near: _Near, rows: Mapping[int, float], next_rows: Mapping[int, float]) -> None:
    """Sort a layer by the mean row of the neighbours of its nodes; a node without neighbours stays where it is."""
    means = {}
    for node in layer:
        found = [next_rows[other] for other in near[node] if other in next_rows]
        means[node] = sum(found) / len(found) if found else rows[node]
    layer.sort(key=lambda node: means[node])


BOX_WIDTH, BOX_HEIGHT, PASS_HEIGHT, GAP_X, GAP_Y, EDGE = 168, 44, 4, 56, 14, 4
#: of the letters of a name, where one of Korean, Chinese and Japanese is twice as wide
NAME_WIDTH = 21
#: by state, a sign of 12 by 12, so that a state is not known by its colour alone; in the order of the legend
SIGNS = {
    "parents": "M2.5 1.5H9.5L2.5 10.5H9.5Z",
    "held": "M3.5 2V10M8.5 2V10",
    "scheduled": "M6 1.2a4.8 4.8 0 1 0 .01 0M6 3.4V6.2L8 7.6",
    "ready": "M6 1.5a4.5 4.5 0 1 0 .01 0",
    "running": "M3 1.5L10.5 6L3 10.5Z",
    "expired": "M6 1.5V7.2M6 9.6V10.6",
    "failed": "M2.5 2.5L9.5 9.5M9.5 2.5L2.5 9.5",
    "canceled": "M6 1.2a4.8 4.8 0 1 0 .01 0M2.7 2.7L9.3 9.3",
    "done": "M2 6.5L5 9.5L10.5 3",
}
_NO_SIGN = "M2 6H10"

_FRAME = """
<div class="jobqueue-graph" tabindex="0" role="region" aria-label="{title}">
<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="group" aria-label="{said}">
<defs><marker id="jobqueue-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path class="jobqueue-arrowhead" d="M0 0 L8 4 L0 8 z"/></marker></defs>
{arrows}{boxes}
</svg></div>
"""
_BOX = """
<g class="jobqueue-node jobqueue-node-{state}"><title>{whole}</title>
<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>
<text class="jobqueue-node-name" x="{left}" y="{name_y}">{name}</text>
<path class="jobqueue-sign" transform="translate({left} {sign_y})" d="{sign}"/>
<text class="jobqueue-node-state" x="{word_x}" y="{word_y}">{word}</text></g>
"""
_KEY = """
<li><svg class="jobqueue-node jobqueue-node-{}" width="28" height="20" aria-hidden="true">
<rect x="2" y="2" width="24" height="16" rx="4"/><path class="jobqueue-sign" transform="translate(8 4)" d="{}"/></svg>
{} <span class="jobqueue-rank">{}</span></li>
"""


class Node(NamedTuple):
    """A node. `state` is a key of SIGNS, or another word; `word` is that state in the active language."""

    job_id: int
    name: str
    state: str
    word: StrOrPromise


def draw(nodes: Sequence[Node], parents: Mapping[int, Sequence[int]], *, title: str, links: bool = True) -> SafeString:
    """The drawing. The table beside it says the same to those who do not see it.

    `links`: whether a box leads to the page of its job.
    """
    layout = arrange([node.job_id for node in nodes], parents)
    middles, height = _middles(layout)
    width = len(layout.layers) * (BOX_WIDTH + GAP_X) - GAP_X + 2 * EDGE
    pairs = [(parent, node) for node in layout.own for parent in parents.get(node, ()) if parent in layout.own]
    arrows = "".join(_arrow(parent, node, layout, middles) for parent, node in pairs)
    boxes = []
    for node in nodes:
        layer = layout.own[node.job_id]
        box = _box(node, EDGE + layer * (BOX_WIDTH + GAP_X), middles[layer][node.job_id] - BOX_HEIGHT / 2)
        boxes.append(link(page_address("job", node.job_id), box) if links else box)
    said = gettext("%(title)s: %(n)d nodes; the table below lists them") % {"title": title, "n": len(nodes)}
    drawn = {"arrows": mark_safe(arrows), "boxes": mark_safe("".join(boxes))}
    return format_html(_FRAME, title=title, said=said, width=width, height=f"{height:.0f}", **drawn)


def legend(nodes: Sequence[Node]) -> SafeString:
    """What the boxes mean, with the rank of nodes in each state."""
    counts = Counter(node.state for node in nodes)
    words = {node.state: node.word for node in nodes}
    keys = sorted(counts, key=lambda state: [*SIGNS, state].index(state))
    rows = ((state, SIGNS.get(state, _NO_SIGN), words[state], counts[state]) for state in keys)
    return format_html('<ul class="jobqueue-keys">{}</ul>', format_html_join("", _KEY, rows))


def _middles(layout: Layout) -> tuple[list[dict[int, float]], float]:
    """The middle of each place in each layer, from the top, and the height of all; layers are centred."""
    sizes = [
        [BOX_HEIGHT if layout.own[node] == rank else PASS_HEIGHT for node in layer]
        for rank, layer in enumerate(layout.layers)
    ]
    tall = [sum(each) + GAP_Y * (len(each) - 1) for each in sizes]
    height = max(tall, default=0) + 2 * EDGE
    found: list[dict[int, float]] = []
    for layer, each, used in zip(layout.layers, sizes, tall, strict=True):
        top, middles = (height - used) / 2, {}
        for node, size in zip(layer, each, strict=True):
            middles[node] = top + size / 2
            top += size + GAP_Y
        found.append(middles)
    return found, height


def _arrow(parent: int, child: int, layout: Layout, middles: Sequence[Mapping[int, float]]) -> str:
    """From the right of a box to the left of another, along the places between them that its arrows pass."""
    begin, end = layout.own[parent], layout.own[child]
    stops = [(begin, middles[begin][parent])]
    stops += [(rank, middles[rank][parent]) for rank in range(begin + 1, end) if parent in middles[rank]]
    stops.append((end, middles[end][child]))
    way = "".join(_steps(stops))
    return format_html('<path class="jobqueue-arrow" d="{}" marker-end="url(#jobqueue-arrow)"/>', way)


def _steps(stops: Sequence[tuple[int, float]]) -> Iterator[str]:
    for (left, y1), (right, y2) in pairwise(stops):
        x1 = EDGE + left * (BOX_WIDTH + GAP_X) + BOX_WIDTH
        x2 = EDGE + right * (BOX_WIDTH + GAP_X)
        if right == stops[-1][0]:
            x2 -= 1
        bend = GAP_X / 2
        yield f"{'M' if left == stops[0][0] else 'L'}{x1} {y1:.0f} "
        yield f"C{x1 + bend:.0f} {y1:.0f} {x2 - bend:.0f} {y2:.0f} {x2} {y2:.0f} "


def _box(node: Node, x: float, y: float) -> SafeString:
    where = {"x": f"{x:.0f}", "y": f"{y:.0f}", "left": f"{x + 10:.0f}", "word_x": f"{x + 27:.0f}"}
    where |= {"name_y": f"{y + 18:.0f}", "sign_y": f"{y + 25:.0f}", "word_y": f"{y + 35:.0f}"}
    return format_html(
        _BOX,
        state=node.state,
        whole=f"{plain(node.name, 200)}: {node.word}",
        width=BOX_WIDTH,
        height=BOX_HEIGHT,
        name=_cut(plain(node.name, 200)),
        sign=SIGNS.get(node.state, _NO_SIGN),
        word=node.word,
        **where,
    )


def _cut(name: str) -> str:
    """Cut a name to what a box has room for."""
    used = 0.0
    for place, letter in enumerate(name):
        used += _width(letter)
        if used > NAME_WIDTH:
            return name[: max(1, place - 1)] + "…"
    return name


def _width(letter: str) -> float:
    if east_asian_width(letter) in "WF":
        return 1.8
    return 1.4 if letter.isupper() or letter in "mw@%" else 1.0


State = GroupMember.State
#: nodes that are drawn
NODES_MAX = 300
#: with more nodes, or more pairs of parent and child, a page does not read them all and shows no layers
SUMMED_MAX, PAIRS_MAX = 3000, 10_000
LAYERS_SHOWN = 100
_NAME_CHARS = 100
_PARENTS_SHOWN = 20

Member = tuple[int, str | None, int]


def graph(group: JobGroup, *, links: bool) -> str:
    """The drawing of a workflow with its legend and the table of its nodes; of more than NODES_MAX nodes the layers.

    `links`: whether nodes lead to the pages of their jobs.
    """
    using = load().database
    # In the order of the index.
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
