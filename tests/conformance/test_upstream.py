"""JobQueueBackend passes the tests that Django, its backport and django-tasks-db have for their own backends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import django
import pytest

from tests.conformance.archives import unpacked
from tests.conformance.skipped import SUITES

NATIVE = django.VERSION >= (6, 0)
#: whose tests the backport has to pass: its archive on PyPI has none, and its code is Django's
LATEST = "Django==6.1.3"
#: a new release may bring new tests of its worker: mirrored.py has to name ours for each
DB = "django-tasks-db==0.13.0"
HERE = ["django", "django, running"] if NATIVE else ["backport", "backport, running", "django-tasks-db"]
RUNNER = Path(__file__).with_name("upstream.py")


def archives(suite: str) -> list[Path]:
    """The unpacked sources that a suite needs."""
    # pip compiles nothing, but it reads the version with setuptools: the first time takes half a minute.
    source = unpacked(f"Django=={django.__version__}" if NATIVE else LATEST, "tests/tasks/")
    return [unpacked(DB), source] if suite == "django-tasks-db" else [source]


@pytest.mark.parametrize("suite", HERE)
def test_the_tests_of_others_pass(suite, capsys):
    try:
        folders = archives(suite)
    except RuntimeError as error:
        # With pip's own words. CI must not pass without them.
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    command = [sys.executable, str(RUNNER), suite, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["failed"] == {}
    assert found["passed"] == found["run"] > 0
    # A name that is no longer there skips nothing and has to go.
    assert found["skipped"].keys() == SUITES[suite].keys()
    reasons = Counter()
    for name, count in found["skipped"].items():
        reasons[SUITES[suite][name]] += count
    with capsys.disabled():
        print(f"\nupstream tests, {suite}: {found['passed']} passed, {reasons.total()} not run:")
        print("\n".join(f"  {count:3} {reason}" for reason, count in reasons.items()))
