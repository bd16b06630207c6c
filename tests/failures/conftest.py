"""The servers that the tests of causes need."""

import pytest

from tests.failures.server import surroundings


@pytest.fixture(scope="package")
def world():
    """Servers on this machine, and a port on which nobody listens."""
    with surroundings() as found:
        yield found
