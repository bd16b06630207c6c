"""One worker of all sweeps the ordering keys that stalled."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue
from jobqueue.db.clock import UtcNowPlus
from jobqueue.maintenance.sweeps import OrderingSweep
from jobqueue.models import Job, LaneEntry, LockRow
from jobqueue.transitions import claim
from tests.marks import finding

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def standing_still():
    """Two keys whose first jobs somebody has deleted."""
    heads = []
    for key in ("a", "b"):
        heads.append(enqueue("q", 1, ordering_key=key))
        enqueue("q", 2, ordering_key=key)
    Job.objects.filter(pk__in=heads).delete()


def stand_still_again():
    """Close the heads, as if nobody had opened them."""
    Job.objects.update(gate=1)


def opened(rounds):
    return rounds.run_once(None, using="default")["jobs_opened"]


def statements(rounds):
    with CaptureQueriesContext(connection) as seen:
        assert opened(rounds) == 0
    return [query["sql"] for query in seen if "job_" in query["sql"]]


@finding("B1")
def test_while_one_worker_looks_at_the_keys_the_others_do_not():
    first, second = OrderingSweep(), OrderingSweep()
    assert opened(first) == 2
    stand_still_again()
    assert len(statements(second)) == 2, "whether there are keys, and whether somebody looks"
    assert opened(first) == 2


def test_when_the_worker_that_looked_is_gone_another_goes_on():
    first, second = OrderingSweep(), OrderingSweep()
    assert opened(first) == 2
    stand_still_again()
    LockRow.objects.update(expires_at=UtcNowPlus(-1))
    assert opened(second) == 2
    stand_still_again()
    assert opened(first) == 0, "it has lost its turn"
    assert opened(second) == 2


def test_without_keys_a_look_is_one_read_and_nobody_holds_the_turn():
    rounds = OrderingSweep()
    assert opened(rounds) == 2
    LaneEntry.objects.all().delete()
    assert len(statements(rounds)) == 1
    assert len(claim("q", 10, worker="w")) == 2
