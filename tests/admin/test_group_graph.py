"""The drawing of a workflow: where its nodes stand, and what the picture says."""

import random
import xml.etree.ElementTree as ElementTree

import pytest

from jobqueue.admin.groups.drawing import Node, draw
from jobqueue.admin.groups.layout import places
from tests.admin.helpers import HOSTILE, Inline
from tests.matrix import enough_on

pytestmark = enough_on("sqlite", why="plain code")
DIAMOND = {2: [1], 3: [1], 4: [2, 3]}


def tangle(count=300, seed=1):
    """So many nodes with up to three parents each, chosen at random among those before it."""
    chance = random.Random(seed)
    return {
        node: sorted(chance.sample(range(1, node), min(node - 1, chance.randint(0, 3)))) for node in range(1, count)
    }


def test_each_node_stands_to_the_right_of_its_parents():
    found = places([1, 2, 3, 4], DIAMOND)
    assert [found[node].layer for node in (1, 2, 3, 4)] == [0, 1, 1, 2]
    parents = tangle()
    found = places([*parents], parents)
    assert all(found[parent].layer < found[node].layer for node, above in parents.items() for parent in above)


def test_no_two_nodes_stand_in_one_place():
    parents = tangle()
    found = places([*parents], parents)
    assert len({*found.values()}) == len(parents)
    for number in range(1 + max(place.layer for place in found.values())):
        rows = sorted(place.row for place in found.values() if place.layer == number)
        assert rows == list(range(len(rows)))


def test_the_same_workflow_always_looks_the_same():
    parents = tangle(seed=7)
    assert places([*parents], parents) == places([*parents], parents)


def test_neighbours_stand_side_by_side():
    """Two chains that are given in turn do not cross."""
    parents = {3: [2], 4: [1], 5: [4], 6: [3]}
    found = places([1, 2, 3, 4, 5, 6], parents)
    assert [found[node].row for node in (1, 4, 5)] == [found[1].row] * 3
    assert [found[node].row for node in (2, 3, 6)] == [found[2].row] * 3


def test_a_parent_that_is_not_shown_does_not_count():
    assert places([5], {5: [1]})[5].layer == 0


def picture(parents, name="node"):
    nodes = [Node(number, f"{name} {number}", "done", "done") for number in sorted({1, *parents})]
    found = draw(nodes, parents, title="The workflow")
    assert Inline(found).found == []
    return ElementTree.fromstring(found)


def test_it_has_a_box_for_each_node_an_arrow_for_each_parent_and_a_name():
    tree = picture(DIAMOND)
    assert tree.get("role") == "region"
    svg = tree.find("svg")
    assert svg.get("aria-label") == "The workflow: 4 nodes; the table below lists them"
    links = [link.get("href") for link in svg.iter("a")]
    assert links == [f"/admin/jobqueue/job/{number}/change/" for number in (1, 2, 3, 4)]
    arrows = [path for path in svg.iter("path") if path.get("class") == "jobqueue-arrow"]
    assert len(arrows) == 4
    assert [text.text for text in svg.iter("text")][:2] == ["node 1", "done"]


def test_all_boxes_are_within_the_picture():
    svg = picture(tangle(120)).find("svg")
    width, height = float(svg.get("width")), float(svg.get("height"))
    for box in svg.iter("rect"):
        assert 0 <= float(box.get("x")) <= width - float(box.get("width"))
        assert 0 <= float(box.get("y")) <= height - float(box.get("height"))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_are_text(hostile):
    tree = picture(DIAMOND, hostile)
    assert not [*tree.iter("script"), *tree.iter("img")]
