"""Workers that know the tasks of these proofs."""

import functools
import importlib

import pytest

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.proofs.failures.settings"}


@pytest.fixture
def jobs(own_registry):
    """The module of the tasks. In this process they are registered for the test only."""
    return importlib.import_module("tests.proofs.failures.tasks")


@pytest.fixture
def run_worker(run_worker):
    """Start runworker with the settings of these proofs."""
    return functools.partial(run_worker, **SETTINGS)
