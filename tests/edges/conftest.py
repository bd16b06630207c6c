"""Fixtures for the tests of commands."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    """The machine's own defaults must not matter."""
    for name in [name for name in os.environ if name.startswith("JOBQUEUE_WORKER_")]:
        monkeypatch.delenv(name)
