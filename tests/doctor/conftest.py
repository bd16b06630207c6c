"""Fixtures of the tests of the doctor."""

import pytest

from jobqueue.doctor import examination
from tests.patience import patient


@pytest.fixture(autouse=True)
def _healthy_process(healthy_process):
    """What other tests have left behind must not be found."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """On a busy machine the doctor would leave checks out because those before them took long."""
    monkeypatch.setattr(examination, "LIMIT_SECONDS", patient(examination.LIMIT_SECONDS))
