"""The way from a call to its SQL is short: python tests/architecture/hops.py shows the functions on it."""

import pytest

from tests.architecture.house import ROOT, hops
from tests.settings import VENDOR

#: route -> (most named functions of the package, what is allowed until it gets there)
BUDGET = {
    "enqueue": (3, 3),
    "task.enqueue": (4, 4),
    "public claim": (4, 4),
    "worker's claim": (7, 7),
    "public ack": (3, 3),
    "worker's ack": (7, 7),
    "fail": (3, 3),
    "heartbeat": (3, 3),
    "reap": (3, 3),
    "lease_lock": (4, 4),
    "publish": (2, 2),
    "mutex": (3, 3),
}

pytestmark = pytest.mark.skipif(VENDOR != "sqlite", reason="the routes are traced on a SQLite file of their own")


@pytest.fixture(scope="module")
def traced():
    return hops(ROOT)


@pytest.mark.parametrize("route", BUDGET)
def test_the_way_to_the_sql_is_no_longer_than_its_budget(traced, route):
    target, allowed = BUDGET[route]
    found = traced[route]
    print(f"{route}: {len(found)} of {target}: {' > '.join(found)}")
    assert len(found) <= allowed, " > ".join(found)
    assert target <= allowed
    assert len(found) == allowed or len(found) <= target, "it got shorter: lower the number that is allowed"
