"""What a proof measured, kept for docs/proof/."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.settings import VENDOR

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
    out = os.environ.get("JOBQUEUE_PROVE_OUT")
    if out and found and request.node.stash.get(PASSED, False):
        line = {"test": request.node.name, "says": (request.function.__doc__ or "").strip(), "on": VENDOR, **found}
        with Path(out).open("a") as file:
            file.write(json.dumps(line) + "\n")
