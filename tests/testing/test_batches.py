"""drain() and run_inline() know batch handlers."""

from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue import enqueue_many, handler
from jobqueue.models import Job
from jobqueue.testing import drain, run_inline
from jobqueue.transitions import ack_many
from tests.app.kit import sell
from tests.app.models import Ticket
from tests.factories import state

pytestmark = pytest.mark.usefixtures("kind")


@pytest.fixture
def calls(own_registry):
    """The payloads of each call of a batch handler that sells all in one transaction, none if there is a None."""
    found = []

    @handler("crates", batch=3)
    def load(leases):
        found.append([lease.payload for lease in leases])
        with transaction.atomic():
            ack_many(leases)
            for lease in leases:
                sell(lease.payload)

    return found


def test_drain_fills_batches_as_a_worker_does(calls, sold):
    enqueue_many("crates", list("abcdefgh"))
    drained = drain()
    assert (drained.ran, drained.ok, drained.failed) == (8, 8, 0)
    assert calls == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]
    assert sold() == list("abcdefgh")
    assert set(Job.objects.values_list("status", flat=True)) == {Job.Status.DONE}


def test_a_limit_counts_jobs(calls):
    enqueue_many("crates", list("abcdefgh"))
    assert drain(limit=4).ran == 4
    assert calls == [["a", "b", "c"], ["d"]]


def test_a_call_that_fails_is_undone_and_its_jobs_run_alone_later(calls, sold):
    Ticket.objects.create(number="b")
    ids = enqueue_many("crates", list("abc"))
    assert drain().failed == 3
    assert sold() == ["b"]
    assert drain(until=timedelta(seconds=8)).ok == 2
    assert sorted(calls[1:4]) == [["a"], ["b"], ["c"]]
    assert [state(i) for i in ids] == ["DONE", "READY", "DONE"]


def test_run_inline_gives_one_at_a_time(calls, sold):
    with run_inline() as drained:
        enqueue_many("crates", ["a", "b"])
        assert sold() == ["a", "b"]
    assert drained.ok == 2
    assert calls == [["a"], ["b"]]
