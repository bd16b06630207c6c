"""An enqueue with a key whose commit is not answered, and whose key is free before the repeat: one job all the same."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from django.db import InternalError, OperationalError, connection

from jobqueue import enqueue, enqueue_many
from jobqueue.allocate import take
from jobqueue.exceptions import OutcomeUnknown
from jobqueue.models import Job
from jobqueue.signals import job_enqueued, transaction_retried
from jobqueue.transitions import ack, claim
from tests.app import tasks
from tests.app.models import Ticket
from tests.faults.test_lock_conflicts import ended, in_thread
from tests.marks import committed, finding, on_a_wire
from tests.proxy import COMMIT, cutting_proxy
from tests.settings import VENDOR

pytestmark = [committed, on_a_wire]


def run_all():
    """A worker claims what waits, and it ends."""
    for lease in claim("default", 10, worker="w"):
        ack(lease)


@contextmanager
def the_key_is_freed_meanwhile(times=1):
    """The answer to the next COMMIT is lost, and before the call is repeated a worker has run the jobs."""

    def work(**_):
        thread, _found = in_thread(run_all)
        ended(thread)

    with cutting_proxy() as proxy:
        Job.objects.exists()
        proxy.cut(COMMIT, times)
        transaction_retried.connect(work)
        try:
            yield proxy
        finally:
            transaction_retried.disconnect(work)


CALLS = {
    "unique=waiting": lambda: [int(tasks.add.using(unique="waiting").enqueue(1, 2).id)],
    "unique=unfinished": lambda: [int(tasks.add.using(unique="unfinished").enqueue(1, 2).id)],
    "many": lambda: [int(one.id) for one in tasks.add.using(unique="waiting").enqueue_many([(1, 1), (2, 2), (1, 1)])],
    "no DEDUPE_SECONDS": lambda: [enqueue("default", {"a": 1.5}, dedupe_key="k")],
    "many, no DEDUPE_SECONDS": lambda: enqueue_many("default", [1, 2], dedupe_keys=["a", "b"]),
}


@finding("K-C2")
@pytest.mark.parametrize("name", CALLS)
def test_a_repeat_finds_the_job_whose_key_is_free_again(settings, name):
    settings.JOBQUEUE = {"DEDUPE_SECONDS": 0}
    told = []

    def hear(job_id, **_):
        told.append(job_id)

    job_enqueued.connect(hear)
    try:
        with the_key_is_freed_meanwhile() as proxy:
            ids = CALLS[name]()
            assert proxy.cuts == 1
    finally:
        job_enqueued.disconnect(hear)
    assert sorted({*ids}) == sorted(Job.objects.values_list("pk", flat=True))
    assert sorted(told) == sorted({*ids})
    assert set(Job.objects.values_list("status", flat=True)) == {Job.Status.DONE}


@contextmanager
def lost_twice():
    """The answer to the next COMMIT is lost, and in the repeat that to the first statement that reads a table."""
    with cutting_proxy() as proxy:
        Job.objects.exists()
        proxy.cut(COMMIT)

        def cut_again(**_):
            proxy.cut("FROM ")

        transaction_retried.connect(cut_again)
        try:
            yield
        finally:
            transaction_retried.disconnect(cut_again)
        assert proxy.cuts == 2


@finding("K-C9")
@pytest.mark.parametrize(
    "call",
    [lambda: enqueue("default", 1, dedupe_key="k"), lambda: enqueue_many("default", [1, 2], dedupe_keys=["k", "l"])],
)
def test_a_connection_that_is_lost_again_leaves_the_outcome_unknown(call):
    with lost_twice(), pytest.raises(OutcomeUnknown, match="may or may not have happened"):
        call()
    # It has happened, and the key is held: a repeat is safe, as the error says.
    ids = list(Job.objects.order_by("pk").values_list("pk", flat=True))
    assert ids
    assert call() in (ids, *ids)


@finding("K-C9")
def test_a_request_whose_connection_is_lost_twice_has_an_unknown_outcome():
    Ticket.objects.bulk_create(Ticket(number=f"t{n}") for n in range(3))
    free = Ticket.objects.filter(sold=False).order_by("number")
    with lost_twice(), pytest.raises(OutcomeUnknown):
        take(free, 1, changes={"sold": True}, request_id="r")
    (row,) = take(free, 1, changes={"sold": True}, request_id="r")
    assert [ticket.pk for ticket in Ticket.objects.filter(sold=True)] == [row.pk]


@contextmanager
def read_only():
    """Sessions of this thread write nothing, as after a failover to a standby."""
    set_it = "SET default_transaction_read_only = on" if VENDOR == "postgres" else "SET SESSION TRANSACTION READ ONLY"

    def each(execute, sql, params, many, context):
        # The session may be a new one.
        context["connection"].connection.cursor().execute(set_it)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(each):
        yield
    connection.close()


@pytest.mark.parametrize("options", [pytest.param({}, marks=finding("K-C6")), {"dedupe_key": "k"}])
def test_a_server_that_takes_no_writes_has_surely_written_nothing(options):
    with read_only(), pytest.raises((OperationalError, InternalError)) as caught:
        enqueue("default", 1, **options)
    assert "read" in str(caught.value).lower()
    assert not Job.objects.exists()
