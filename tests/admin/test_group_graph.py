"""The drawing of a workflow: where its nodes stand, and what the picture says."""

import random
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from jobqueue.admin.groups import workflow
from jobqueue.admin.groups.workflow import BOX_HEIGHT, BOX_WIDTH, SIGNS, Node, arrange, draw, legend
from tests.admin.helpers import HOSTILE, Inline

DIAMOND = {2: [1], 3: [1], 4: [2, 3]}


def tangle(count=300, seed=1):
    """So many nodes with up to three parents each, chosen at random among those before it."""
    chance = random.Random(seed)
    return {
        node: sorted(chance.sample(range(1, node), min(node - 1, chance.randint(0, 3)))) for node in range(1, count)
    }


def row(found, node):
    return found.layers[found.own[node]].index(node)


def test_each_node_stands_to_the_right_of_its_parents():
    found = arrange([1, 2, 3, 4], DIAMOND)
    assert [found.own[node] for node in (1, 2, 3, 4)] == [0, 1, 1, 2]
    parents = tangle()
    found = arrange([*parents], parents)
    assert all(found.own[parent] < found.own[node] for node, above in parents.items() for parent in above)


def test_a_node_stands_to_the_right_of_a_parent_that_was_added_later():
    assert arrange([1, 2, 3], {2: [1, 3], 3: [1]}).own == {1: 0, 2: 2, 3: 1}


def test_each_node_stands_once_in_its_layer():
    parents = tangle()
    found = arrange([*parents], parents)
    assert {*found.own} == {*parents}
    for layer in found.layers:
        assert len({*layer}) == len(layer)
    assert all(node in found.layers[layer] for node, layer in found.own.items())


def test_the_same_workflow_always_looks_the_same():
    parents = tangle(seed=7)
    assert arrange([*parents], parents) == arrange([*parents], parents)


def test_neighbours_stand_side_by_side():
    """Two chains that are given in turn do not cross."""
    parents = {3: [2], 4: [1], 5: [4], 6: [3]}
    found = arrange([1, 2, 3, 4, 5, 6], parents)
    assert [row(found, node) for node in (1, 4, 5)] == [row(found, 1)] * 3
    assert [row(found, node) for node in (2, 3, 6)] == [row(found, 2)] * 3


def test_a_parent_that_is_not_shown_does_not_count():
    assert arrange([5], {5: [1]}).own[5] == 0


def test_an_arrow_that_passes_a_layer_has_a_place_in_it():
    found = arrange([1, 2, 3], {2: [1], 3: [1, 2]})
    assert {*found.layers[1]} == {1, 2}


def test_with_too_many_such_places_there_are_none(monkeypatch):
    monkeypatch.setattr(workflow, "PASSES_MAX", 0)
    found = arrange([1, 2, 3], {2: [1], 3: [1, 2]})
    assert found.layers == [[1], [2], [3]]


@pytest.mark.parametrize(
    "parents",
    [
        tangle(),
        {node: [node - 1] if node > 1 else [] for node in range(1, 301)},
        {node: [*range(max(1, node - 20), node)] for node in range(1, 301)},
        {node: [1] if node > 1 else [] for node in range(1, 301)},
    ],
    ids=["tangle", "chain", "braid", "fan"],
)
def test_300_nodes_are_drawn_in_a_bounded_number_of_steps(parents):
    """However their edges cross. A step is a call."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        draw(nodes_of(parents), parents, title="The workflow")
    finally:
        sys.setprofile(None)
    assert calls <= 1_000_000


def test_pairs_in_a_circle_which_only_plain_sql_can_write_are_drawn():
    words = "".join(picture({1: [2], 2: [1], 3: [3]}).itertext())
    assert [f"node {number}" in words for number in (1, 2, 3)] == [True] * 3


def nodes_of(parents, name="node"):
    return [Node(number, f"{name} {number}", "done", "done") for number in sorted({1, *parents})]


def picture(parents, name="node"):
    found = draw(nodes_of(parents, name), parents, title="The workflow")
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


def overlap(one, other):
    (x1, y1), (x2, y2) = one, other
    return abs(x1 - x2) < BOX_WIDTH and abs(y1 - y2) < BOX_HEIGHT


def test_no_two_boxes_overlap():
    corners = [(float(box.get("x")), float(box.get("y"))) for box in picture(tangle(120)).find("svg").iter("rect")]
    assert not [1 for i, one in enumerate(corners) for other in corners[:i] if overlap(one, other)]


def test_no_box_hides_an_arrow_that_passes_its_layer():
    svg = picture({2: [1], 3: [1, 2]}).find("svg")
    top, bottom = (float(svg.findall("a")[1].find("g/rect").get("y")) + more for more in (0, BOX_HEIGHT))
    (passing,) = [path.get("d") for path in svg.iter("path") if path.get("d").count("C") == 2]
    height = float(passing.split("L")[1].split()[1])
    assert not top <= height <= bottom


def test_each_state_has_a_sign_of_its_own_and_its_word():
    nodes = [Node(number, state, state, f"it is {state}") for number, state in enumerate(SIGNS, 1)]
    svg = ElementTree.fromstring(draw(nodes, {}, title="The workflow")).find("svg")
    signs = [path.get("d") for path in svg.iter("path") if path.get("class") == "jobqueue-sign"]
    assert len({*signs}) == len(SIGNS)
    assert "it is held" in [text.text for text in svg.iter("text")]


def test_the_legend_counts_the_nodes_of_each_state_that_is_there():
    nodes = [Node(1, "a", "done", "done"), Node(2, "b", "failed", "failed"), Node(3, "c", "done", "done")]
    keys = ["".join(key.itertext()).split() for key in ElementTree.fromstring(legend(nodes)).iter("li")]
    assert keys == [["failed", "1"], ["done", "2"]]


def test_without_links_no_box_leads_to_a_job():
    nodes = [Node(1, "a", "done", "done")]
    assert "<a " not in draw(nodes, {}, title="The workflow", links=False)


@pytest.mark.parametrize("name", ["import of customers and orders", "고객과 주문을 가져오는 작업", "W" * 40])
def test_a_name_is_cut_to_its_box_and_whole_in_its_title(name):
    svg = picture({}, name).find("svg")
    assert next(svg.iter("title")).text == f"{name} 1: done"
    assert next(svg.iter("text")).text.endswith("…")


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
