"""How long a verb waits for its connection, and connections that are refused, by limits that really are reached."""

import time

import pytest
from django.db import OperationalError, connection, connections, transaction

from jobqueue import enqueue
from jobqueue.checks import server_problems
from jobqueue.db import fault_vendor, retry, sessions
from jobqueue.db.dialect import GONE_KINDS, ErrorKind
from jobqueue.models import Job
from jobqueue.worker.monitor.preflight import preflight
from tests.cli.helpers import options
from tests.exhausted import LIMITS, POOL_SECONDS, no_connection_left
from tests.marks import committed, finding
from tests.settings import VENDOR

pytestmark = committed


@pytest.fixture
def openings(monkeypatch):
    """What was reported."""
    found = []
    monkeypatch.setattr(sessions, "_observers", [found.append])
    return found


@pytest.fixture
def refusals(monkeypatch):
    """The transactions that were reported as refused."""
    found = []
    monkeypatch.setattr(retry, "_observers", [found.append])
    return found


@pytest.mark.skipif(VENDOR == "sqlite", reason="a test database in memory is never closed")
def test_the_wait_for_a_connection_is_reported_once_for_each_that_is_opened(openings):
    connection.close()
    begun = time.monotonic()
    enqueue("q", 1)
    enqueue("q", 2)
    (one,) = openings
    assert (one.opened, one.refused) == (True, False)
    assert 0 < one.seconds < time.monotonic() - begun


def test_within_a_callers_transaction_there_is_nothing_to_wait_for(openings):
    with transaction.atomic():
        enqueue("q", 1)
    assert openings == []


@pytest.mark.parametrize("limit", LIMITS)
def test_a_connection_that_is_refused_is_counted_for_its_verb_and_the_enqueue_surely_has_not_happened(
    limit, openings, refusals
):
    with no_connection_left(limit):
        with pytest.raises(OperationalError) as caught:
            enqueue("q", 1)
        assert fault_vendor("default").error_kind(caught.value) in GONE_KINDS
        assert fault_vendor("default").never_sent(caught.value)
    # Two tries of the transaction, and perhaps of the read of the limits before it.
    assert [one.refused for one in openings] in ([True] * 2, [True] * 4)
    assert [(one.verb, one.kind, one.redone) for one in refusals] == [
        ("enqueue", ErrorKind.NO_CONNECTION, True), ("enqueue", ErrorKind.NO_CONNECTION, False),
    ]  # fmt: skip
    if limit == "pool":
        assert all(one.seconds >= 0.9 * POOL_SECONDS for one in openings)
    assert not Job.objects.exists()
    connection.close()
    enqueue("q", 2)
    assert openings[-1].opened


@pytest.mark.parametrize(
    ("pool", "needed", "size"),
    [
        (True, 9, 4),
        ({"min_size": 8}, 9, 8),
        ({"min_size": 2, "max_size": 9}, 9, None),
        ({"min_size": 2, "max_size": 9}, 10, 9),
        ({"timeout": 5}, 4, None),
        (False, 9, None),
        (None, 9, None),
    ],
)
def test_a_pool_that_is_smaller_than_a_process_of_a_worker_needs_is_a_problem(monkeypatch, pool, needed, size):
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {} if pool is None else {"pool": pool})
    found = sessions.pool_problem(connection, needed)
    assert (found is None) == (size is None)
    if found is not None:
        assert found.code == "W038"
        assert f"lets a process have {size} connections" in found.text
        assert f"at least {needed}" in found.hint


@finding("K-C10")
@pytest.mark.skipif(VENDOR != "postgres", reason="only psycopg has a pool")
def test_check_and_a_worker_that_starts_report_a_pool_that_is_too_small(monkeypatch, caplog):
    # Without the pool itself, which would outlive the test.
    monkeypatch.setattr(type(connections["default"]), "pool", None)
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", {"max_size": 9})
    assert not [one for one in server_problems("default") if one.code == "W038"]
    preflight(options("--concurrency", "5"))
    assert "needs up to 10" in caplog.text
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", True)
    assert [one for one in server_problems("default") if one.code == "W038"]
