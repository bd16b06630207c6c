"""A workflow as SVG: a box for each node with its state, and an arrow from each parent to its child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext

from jobqueue.admin.groups.layout import Place, places
from jobqueue.admin.page.addresses import page_address
from jobqueue.admin.page.formatting import plain

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, EDGE = 168, 44, 56, 14, 4
NAME_CHARS = 22


_FRAME = """
<div class="jobqueue-graph" tabindex="0" role="region" aria-label="{title}">
<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="group" aria-label="{said}">
<defs><marker id="jobqueue-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path class="jobqueue-arrowhead" d="M0 0 L8 4 L0 8 z"/></marker></defs>
{arrows}{boxes}
</svg></div>
"""


class Node(NamedTuple):
    """A node. `state` is a key of the states of the admin; `word` is that state in the active language."""

    job_id: int
    name: str
    state: str
    word: StrOrPromise


def draw(nodes: Sequence[Node], parents: Mapping[int, Sequence[int]], *, title: str) -> SafeString:
    """The drawing. `nodes`: each after its parents. The table beside it says the same to those who do not see it."""
    where = places([node.job_id for node in nodes], parents)
    layers = 1 + max(place.layer for place in where.values())
    rows = 1 + max(place.row for place in where.values())
    width = layers * (BOX_WIDTH + GAP_X) - GAP_X + 2 * EDGE
    height = rows * (BOX_HEIGHT + GAP_Y) - GAP_Y + 2 * EDGE
    tall = {number: sum(place.layer == number for place in where.values()) for number in range(layers)}
    corners = {job_id: _corner(place, tall[place.layer], height) for job_id, place in where.items()}
    pairs = [(parent, node) for node in where for parent in parents.get(node, ()) if parent in where]
    arrows = "".join(_arrow(corners[parent], corners[node]) for parent, node in pairs)
    boxes = "".join(_box(node, *corners[node.job_id]) for node in nodes)
    said = gettext("%(title)s: %(n)d nodes; the table below lists them") % {"title": title, "n": len(nodes)}
    size = {"width": width, "height": height}
    return format_html(_FRAME, title=title, said=said, arrows=mark_safe(arrows), boxes=mark_safe(boxes), **size)


def _corner(place: Place, count: int, height: int) -> tuple[float, float]:
    """The upper left corner of a box; a layer stands in the middle of the height."""
    used = count * (BOX_HEIGHT + GAP_Y) - GAP_Y
    top = (height - used) / 2
    return EDGE + place.layer * (BOX_WIDTH + GAP_X), top + place.row * (BOX_HEIGHT + GAP_Y)


def _arrow(begin: tuple[float, float], end: tuple[float, float]) -> str:
    x1, y1 = begin[0] + BOX_WIDTH, begin[1] + BOX_HEIGHT / 2
    x2, y2 = end[0] - 1, end[1] + BOX_HEIGHT / 2
    bend = min(GAP_X, (x2 - x1)) / 2
    path = f"M{x1:.0f} {y1:.0f} C{x1 + bend:.0f} {y1:.0f} {x2 - bend:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
    return format_html('<path class="jobqueue-arrow" d="{}" marker-end="url(#jobqueue-arrow)"/>', path)


def _box(node: Node, x: float, y: float) -> str:
    return format_html(
        '<a href="{}"><g class="jobqueue-node jobqueue-node-{}"><title>{}</title><rect x="{}" y="{}" width="{}" '
        'height="{}" rx="6"/><text class="jobqueue-node-name" x="{}" y="{}">{}</text><text class="jobqueue-node-state" '
        'x="{}" y="{}">{}</text></g></a>',
        page_address("job", node.job_id),
        node.state,
        f"{plain(node.name, 200)}: {node.word}",
        f"{x:.0f}",
        f"{y:.0f}",
        BOX_WIDTH,
        BOX_HEIGHT,
        f"{x + 10:.0f}",
        f"{y + 18:.0f}",
        plain(node.name, NAME_CHARS),
        f"{x + 10:.0f}",
        f"{y + 35:.0f}",
        node.word,
    )
