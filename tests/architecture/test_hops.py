"""The way from a call to its SQL is short: python tests/architecture/hops.py shows the functions on it."""

import pytest

from tests.architecture.house import ROOT, hops
from tests.architecture.test_layers import none_of
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


def test_the_ways_to_the_sql_are_no_longer_than_their_budgets():
    traced = hops(ROOT)

    def offenders():
        for route, (target, allowed) in BUDGET.items():
            way = f"{route}: {len(traced[route])} of {target}: {' > '.join(traced[route])}"
            print(way)
            if len(traced[route]) > allowed:
                yield way
            elif target < len(traced[route]) < allowed:
                yield f"{way}: it got shorter, so lower the number that is allowed"

    none_of(offenders())
