"""Workers that know the tasks of these proofs, and an observer outside of the product."""

import functools
import importlib

import pytest

from tests.failures.shop import Shop
from tests.observer import Observer
from tests.proofs import audit

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.proofs.flow.settings"}


@pytest.fixture
def jobs(own_registry):
    """The module of the tasks. In this process they are registered for the test only."""
    return importlib.reload(importlib.import_module("tests.proofs.flow.tasks"))


@pytest.fixture
def run_worker(run_worker):
    """Start runworker with the settings of these proofs."""
    return functools.partial(run_worker, **SETTINGS)


@pytest.fixture
def observer(tmp_path):
    """Sees which bodies run."""
    made = Observer(tmp_path)
    yield made
    made.end()


@pytest.fixture
def audited():
    """The database records each change of a job's status."""
    audit.start()
    yield
    audit.stop()


@pytest.fixture
def shop():
    """A service that is up."""
    made = Shop()
    made.switch_on()
    yield made
    made.switch_off()
