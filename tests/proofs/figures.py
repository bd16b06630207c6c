"""What a proof measured, kept for docs/proof/."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

FULL = os.environ.get("JOBQUEUE_PROVE") == "1"
PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Remember whether the test itself has passed."""
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture
def full():
    """Whether to run at full size."""
    return FULL


@pytest.fixture
def figure(request):
    """figure("what", value): kept with the test's name, if the test passes."""
    found = {}
    yield lambda what, value: found.__setitem__(what, value)
    keep(request, [found])


@pytest.fixture
def row(request):
    """row(what=value, ...): a row of its own, where a test makes a table. Underscores stand for spaces."""
    found = []
    yield lambda **columns: found.append({name.replace("_", " "): value for name, value in columns.items()})
    keep(request, found, " In detail.")


def keep(request, rows, about=""):
    """Write down what a test has found, if it passes."""
    from tests.settings import VENDOR

    if request.node.stash.get(PASSED, False):
        write((request.function.__doc__ or "").strip() + about, VENDOR, rows, test=request.node.name)


def write(says: str, database: str, rows: Iterable[Mapping[str, object]], test: str = "") -> None:
    """Write rows of the table with the heading `says` into the file of the part; nothing without one."""
    out = os.environ.get("JOBQUEUE_PROVE_OUT")
    if not out:
        return
    with Path(out).open("a") as file:
        for found in filter(None, rows):
            file.write(json.dumps({"test": test, "says": says, "on": database, **found}) + "\n")
