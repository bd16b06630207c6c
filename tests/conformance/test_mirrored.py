"""Every worker test of django-tasks-db has one of ours that shows the same, and it is really there."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from tests.conformance.archives import unpacked
from tests.conformance.mirrored import MIRRORED
from tests.conformance.skipped import COMMAND, DJANGO_TASKS_DB
from tests.conformance.test_upstream import DB, HERE

TESTS = Path(__file__).parents[1]


def names_of_tests(body: list[ast.stmt]) -> set[str]:
    """The names of the test functions among the statements."""
    functions = (node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {node.name for node in functions if node.name.startswith("test")}


def tree(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


@pytest.mark.skipif("django-tasks-db" not in HERE, reason="its archive is fetched where its suite is run")
def test_the_table_has_every_worker_test_of_theirs_and_no_other():
    try:
        theirs = unpacked(DB)
    except RuntimeError as error:
        # With pip's own words. CI must not pass without them.
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    classes = {node.name: node for node in tree(theirs / "tests/tests.py") if isinstance(node, ast.ClassDef)}
    found = {name: names_of_tests(classes[name].body) for name in MIRRORED}
    assert {name: found[name] ^ table.keys() for name, table in MIRRORED.items()} == {name: set() for name in MIRRORED}


def test_what_is_skipped_because_it_drives_their_command_is_in_the_table():
    assert {name for name, why in DJANGO_TASKS_DB.items() if why == COMMAND} == MIRRORED.keys()


def test_every_test_of_ours_that_the_table_names_is_there():
    named = {name for table in MIRRORED.values() for ours in table.values() for name in ours}
    there = {path: names_of_tests(tree(TESTS / path)) for path in {name.partition("::")[0] for name in named}}
    missing = [name for name in sorted(named) if name.partition("::")[2] not in there[name.partition("::")[0]]]
    assert missing == []
    assert all(ours for table in MIRRORED.values() for ours in table.values())
