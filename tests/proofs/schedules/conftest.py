"""Workers and producers that know the tasks of these proofs."""

import functools

import pytest

from tests.proofs.schedules import rows
from tests.proofs.schedules.producers import Producers

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.proofs.schedules.settings"}


@pytest.fixture
def run_worker(run_worker):
    """Start runworker with the settings of these proofs."""
    return functools.partial(run_worker, **SETTINGS)


@pytest.fixture
def numbers(transactional_db):
    """The table with which rows.py makes many rows of one."""
    rows.make_numbers()
    yield
    rows.drop_numbers()


@pytest.fixture
def producers(tmp_path):
    """Start processes that add jobs; killed at the end of the test if they still run."""
    made = Producers(tmp_path)
    yield made
    made.kill()
