"""docs/explanation/architecture.md and its pictures show the rooms and the functions that the code has."""

from __future__ import annotations

import ast
import xml.etree.ElementTree as ElementTree

from tests.architecture.test_layers import PACKAGE, ROOMS, none_of
from tests.docs.markdown import ROOT, code, table

PAGE = ROOT / "docs" / "explanation" / "architecture.md"
PICTURES = ROOT / "docs" / "img"
ROUTE = [(code(row[1])[0], code(row[2])[0]) for row in table(PAGE, "The route of a job")]


def texts(picture: str, kind: str) -> list[str]:
    """The texts of a class in an SVG, in the order of the file."""
    root = ElementTree.parse(PICTURES / picture).getroot()
    found = (node for node in root.iter("{http://www.w3.org/2000/svg}text") if node.get("class") == kind)
    return [node.text or "" for node in found]


def functions(path: str) -> set[str]:
    """The functions of a file of the package, methods as Class.method."""
    found = set()
    for node in ast.parse((PACKAGE / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def test_the_picture_shows_every_room_in_its_order():
    assert texts("architecture.svg", "room") == ROOMS


def test_the_page_describes_every_room_in_its_order():
    assert [room for row in table(PAGE, "The rooms") for room in code(row[0])] == ROOMS


def test_the_route_names_functions_that_exist():
    none_of(f"{path} has no {function}" for function, path in ROUTE if function not in functions(path))


def test_the_picture_of_the_route_shows_the_functions_of_the_page():
    assert texts("route.svg", "step") == [function for function, _ in ROUTE]
