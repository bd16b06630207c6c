"""Where the nodes of a workflow stand: in layers from left to right, each to the right of all its parents. Plain code.

The layers are those of the longest paths, and the order within a layer follows the mean place of the neighbours, as in
K. Sugiyama, S. Tagawa and M. Toda, "Methods for visual understanding of hierarchical system structures" (1981).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

    `nodes`: each after its parents. Parents that are not among the nodes do not count.
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
        for number in range(1, len(layers)) if forward else range(len(layers) - 2, -1, -1):
            near = _neighbours(layers[number], number, own, ups if forward else downs, forward=forward)
            _order(layers[number], near, rows[number], rows[number - 1 if forward else number + 1])
            rows[number] = _rows(layers[number])
    return Layout(layers, own)


def depths(nodes: Sequence[int], parents: Parents) -> dict[int, int]:
    """The layer of each node, from 0. `nodes`: each after its parents; others do not count."""
    found: dict[int, int] = {}
    for node in nodes:
        found[node] = 1 + max((found[parent] for parent in parents.get(node, ()) if parent in found), default=-1)
    return found


def _pass(layers: list[list[int]], own: Mapping[int, int], ups: Parents) -> None:
    """Give the arrows of each node one place in each layer that they pass, so that no box hides them."""
    last = dict(own)
    for node, above in ups.items():
        for parent in above:
            last[parent] = max(last[parent], own[node] - 1)
    if sum(last[node] - own[node] for node in own) > PASSES_MAX:
        return
    for node, end in last.items():
        for number in range(own[node] + 1, end + 1):
            layers[number].append(node)


def _rows(layer: Sequence[int]) -> dict[int, float]:
    """Where each node of a layer stands, from 0 to 1."""
    return {node: (row + 0.5) / len(layer) for row, node in enumerate(layer)}


class _Near(dict[int, Sequence[int]]):
    """The neighbours of nodes in the next layer; a node without an entry is its own neighbour."""

    def __missing__(self, node: int) -> Sequence[int]:
        return (node,)


def _neighbours(layer: Sequence[int], number: int, own: Mapping[int, int], of: Parents, *, forward: bool) -> _Near:
    """Map each node of layer `number` to its neighbours `of` the layer before it (parents) or behind it (children)."""
    if forward:
        return _Near({node: of[node] for node in layer if own[node] == number})
    return _Near({node: [*(child for child in of[node] if own[child] == number + 1), node] for node in layer})


def _order(layer: list[int], near: _Near, rows: Mapping[int, float], next_rows: Mapping[int, float]) -> None:
    """Sort a layer by the mean row of the neighbours of its nodes; a node without neighbours stays where it is."""
    means = {}
    for node in layer:
        found = [next_rows[other] for other in near[node] if other in next_rows]
        means[node] = sum(found) / len(found) if found else rows[node]
    layer.sort(key=lambda node: means[node])
