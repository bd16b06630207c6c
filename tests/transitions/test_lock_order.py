"""Whoever locks several rows locks them low to high, whatever order they came in: two cannot wait in a circle."""

import pytest
from django.db import connection, transaction

from jobqueue.ordering import lanes
from jobqueue.transitions import ack_many, claim, fail_many, heartbeat_many, release_many
from tests.factories import make_jobs

pytestmark = pytest.mark.django_db

BATCHES = {
    "ack_many": ack_many,
    "fail_many": lambda leases: fail_many(leases, error="boom", delay_seconds=1),
    "release_many": release_many,
    "heartbeat_many": lambda leases: heartbeat_many(leases, lease_seconds=60),
}


def statements(work):
    """The statements of `work` with their parameters; what it wrote is undone."""
    found = []

    def keep(execute, sql, params, *rest):
        if not sql.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")):
            found.append((sql, [plain(value) for value in params or ()]))
        return execute(sql, params, *rest)

    with transaction.atomic(), connection.execute_wrapper(keep):
        work()
        transaction.set_rollback(True)
    return found


def plain(value):
    """What a driver may have wrapped in an object that equals no other."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    value = getattr(value, "obj", value)
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else str(value)


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_writes_leases_of_several_claims_from_the_lowest_id_up(name):
    make_jobs(4)
    leases = claim("q", 2, worker="w") + claim("q", 2, worker="w")
    expected = statements(lambda: BATCHES[name](leases))
    assert expected
    for given in (leases[::-1], [leases[2], leases[0], leases[3], leases[1]]):
        assert statements(lambda: BATCHES[name](given)) == expected  # noqa: B023


def test_ordering_keys_are_held_in_one_order():
    keys = [("q", bytes([n])) for n in range(6)]
    expected = statements(lambda: lanes.hold(keys, "default"))
    assert len(expected) >= len(keys)
    assert statements(lambda: lanes.hold(keys[::-1], "default")) == expected
