"""Fixtures for pytest, which loads this module wherever jobqueue is installed: it must not import Django."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jobqueue.testing.clock import Clock
    from jobqueue.testing.runs import Drained


def _database(request: pytest.FixtureRequest) -> None:
    # The fixture of pytest-django, if the project uses it; a unittest.TestCase has its own.
    if request.config.pluginmanager.has_plugin("django"):
        request.getfixturevalue("db")


@pytest.fixture
def jobqueue_inline(request: pytest.FixtureRequest) -> Iterator[Drained]:
    """Run every job in this thread as soon as it is committed: jobqueue.testing.run_inline() around the test."""
    _database(request)
    from jobqueue.testing import run_inline

    with run_inline() as drained:
        yield drained


@pytest.fixture
def jobqueue_drain(request: pytest.FixtureRequest) -> Callable[..., Drained]:
    """jobqueue.testing.drain, which runs all due jobs."""
    _database(request)
    from jobqueue.testing import drain

    return drain


@pytest.fixture
def jobqueue_travel(request: pytest.FixtureRequest) -> Iterator[Callable[..., Clock]]:
    """jobqueue_travel(by) or jobqueue_travel(to=instant) moves the queue's clock forward until the test's end."""
    _database(request)
    from jobqueue.testing import travel

    with ExitStack() as travels:
        yield lambda *by, **options: travels.enter_context(travel(*by, **options))
