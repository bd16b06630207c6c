"""Fixtures for pytest. Loaded wherever jobqueue is installed, so it imports nothing of Django by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest


def _database(request: pytest.FixtureRequest) -> None:
    # Of pytest-django, where the project uses it; a unittest.TestCase has its own.
    if request.config.pluginmanager.has_plugin("django"):
        request.getfixturevalue("db")


@pytest.fixture
def jobqueue_inline(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Every job runs in this thread as soon as it is committed: jobqueue.testing.run_inline() around the test."""
    _database(request)
    from jobqueue.testing import run_inline

    with run_inline() as drained:
        yield drained


@pytest.fixture
def jobqueue_drain(request: pytest.FixtureRequest) -> Any:
    """jobqueue.testing.drain: runs all due jobs."""
    _database(request)
    from jobqueue.testing import drain

    return drain


@pytest.fixture
def jobqueue_travel(request: pytest.FixtureRequest) -> Iterator[Any]:
    """jobqueue_travel(by) or jobqueue_travel(to=instant) moves the queue's clock forward until the test's end."""
    _database(request)
    from jobqueue.testing import travel

    with ExitStack() as travels:
        yield lambda *by, **options: travels.enter_context(travel(*by, **options))
