"""Fixtures of the tests of the doctor."""

import pytest


@pytest.fixture(autouse=True)
def _healthy_process(healthy_process):
    """What other tests have left behind must not be found."""
