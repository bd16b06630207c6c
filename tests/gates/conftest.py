"""Tasks with limits that are gone after each test: a limit of any task changes how all claims of a process look."""

import pytest

from jobqueue import task
from tests.gates import jobs


@pytest.fixture
def limited(own_registry):
    """limited(**fields): the task work() in queue "q", with these fields."""

    def make(function=jobs.work, **fields):
        return task(queue_name="q", **fields)(function)

    return make


@pytest.fixture
def plain(limited):
    """The task work() without limits."""
    return limited()
