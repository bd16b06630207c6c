"""Where the nodes of a workflow stand: in layers from left to right, each to the right of all its parents. Plain code.

The layers are those of the longest paths, and the order within a layer follows the mean place of the neighbours, as in
K. Sugiyama, S. Tagawa and M. Toda, "Methods for visual understanding of hierarchical system structures" (1981).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: how often the layers are put in order, from the left and from the right in turn
SWEEPS = 8


@dataclass(frozen=True, slots=True)
class Place:
    """The layer of a node, from the left, and its row in it, from the top; both begin with 0."""

    layer: int
    row: int


def places(nodes: Sequence[int], parents: Mapping[int, Sequence[int]]) -> dict[int, Place]:
    """The place of each node. The same nodes and parents give the same places.

    `nodes`: each after its parents. Parents that are not among the nodes do not count.
    """
    known = {*nodes}
    ups = {node: [parent for parent in parents.get(node, ()) if parent in known] for node in nodes}
    layers = _layers(nodes, ups)
    downs: dict[int, list[int]] = {node: [] for node in nodes}
    for node, above in ups.items():
        for parent in above:
            downs[parent].append(node)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        neighbours = ups if forward else downs
        for layer in layers if forward else reversed(layers):
            _order(layer, neighbours, layers)
    return {node: Place(number, row) for number, layer in enumerate(layers) for row, node in enumerate(layer)}


def _layers(nodes: Sequence[int], ups: Mapping[int, Sequence[int]]) -> list[list[int]]:
    depth: dict[int, int] = {}
    layers: list[list[int]] = []
    for node in nodes:
        depth[node] = 1 + max((depth[parent] for parent in ups[node] if parent in depth), default=-1)
        while len(layers) <= depth[node]:
            layers.append([])
        layers[depth[node]].append(node)
    return layers


def _order(layer: list[int], neighbours: Mapping[int, Sequence[int]], layers: Sequence[Sequence[int]]) -> None:
    """Sort a layer by the mean row of the neighbours of its nodes; one without any stays where it is."""
    rows = {node: (row + 0.5) / len(each) for each in layers for row, node in enumerate(each)}
    means = {
        node: sum(rows[other] for other in neighbours[node]) / len(neighbours[node]) if neighbours[node] else rows[node]
        for node in layer
    }
    layer.sort(key=lambda node: means[node])
