"""once() whose record is in another database than the effect: nothing is lost or doubled without a word."""

import json

import pytest
from django.db import connections, transaction
from django.http import HttpResponse
from django.test import RequestFactory

from jobqueue.exceptions import TransactionRequired, WrongDatabase
from jobqueue.idempotency import idempotent_view, once
from jobqueue.locks import lease_lock
from jobqueue.models import IdempotencyRecord, Job
from tests.app.models import Ticket
from tests.factories import claim_one, make_job
from tests.marks import finding
from tests.races.actors import RolledBack

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "queue", "shop"])


def sell(number="1", using=None, on="default"):
    """The effect is a ticket on the database `on`."""
    with once("k", using=using) as o:
        if not o.done:
            Ticket.objects.using(on).create(number=number)
            o.result = "sold"
    return o.done


def effects(using="default"):
    return Ticket.objects.using(using).count()


def records(using="queue"):
    return IdempotencyRecord.objects.using(using).count()


def in_transaction(work, using="default", commit=True):
    """`work` in a transaction on `using`, which may be rolled back afterwards."""
    with transaction.atomic(using=using):
        done = work()
        if not commit:
            raise RolledBack
    return done


@finding("H5")
def test_in_a_transaction_of_another_database_it_is_refused_and_nothing_is_written():
    with pytest.raises(TransactionRequired, match=r"'queue'.*'default'"):
        in_transaction(sell)
    assert (effects(), records()) == (0, 0)
    with pytest.raises(RolledBack):
        in_transaction(lambda: sell(using="default"), commit=False)
    assert sell(using="default") is False, "what was rolled back may be done again"
    assert (effects(), records("default")) == (1, 1)


@finding("H5")
def test_a_repeat_is_refused_there_as_well_so_that_the_mistake_is_seen_at_once():
    with once("k"):
        pass
    with pytest.raises(TransactionRequired):
        in_transaction(sell)


@finding("H5")
def test_an_effect_on_another_database_is_refused_before_it_is_sent():
    with pytest.raises(WrongDatabase, match=r"once\(\) commits on 'queue'.*'default'"):
        sell()
    with pytest.raises(WrongDatabase):
        in_transaction(sell, using="queue")
    assert (effects(), records()) == (0, 0)
    assert sell(using="default") is False
    assert sell(using="default") is True
    assert effects() == 1


@finding("H5")
def test_a_transaction_around_both_does_not_make_two_commits_one():
    with pytest.raises(WrongDatabase), transaction.atomic(using="default"), transaction.atomic(using="queue"):
        sell()
    assert (effects(), records()) == (0, 0)


@finding("H5")
def test_a_job_enqueued_in_the_block_but_in_another_database_is_refused_and_after_the_commit_it_is_not():
    with pytest.raises(WrongDatabase), once("k", using="default"):
        make_job()
    assert Job.objects.using("queue").count() == 0
    with once("k", using="default") as o:
        assert not o.done
        transaction.on_commit(make_job, using="default")
    assert Job.objects.using("queue").count() == 1


def test_effect_and_record_in_one_database_are_committed_and_undone_together():
    with pytest.raises(RolledBack):
        in_transaction(lambda: sell(using="default"), commit=False)
    assert effects() == 0
    assert [in_transaction(lambda: sell(using="default")) for _ in range(2)] == [False, True]
    assert effects() == 1


def test_an_enqueue_is_an_effect_in_the_queues_database():
    for _ in range(2):
        with once("k") as o:
            if not o.done:
                make_job()
    assert Job.objects.using("queue").count() == 1


def test_locks_and_heartbeats_of_the_queues_database_are_no_effects():
    from jobqueue.transitions import heartbeat

    make_job()
    lease = claim_one()
    with once("k", using="default") as o, lease_lock("l", 60, 0):
        heartbeat(lease, lease_seconds=600)
        Ticket.objects.create(number="1")
    assert not o.done
    assert effects() == 1


def test_reads_of_other_databases_are_free():
    with once("k") as o:
        o.result = effects() + effects("shop")
    assert o.result == 0


@finding("H5")
def test_a_view_says_which_database_it_needs():
    def create(request):
        Ticket.objects.create(number="1")
        return HttpResponse(status=201)

    def ask(**options):
        headers = {"HTTP_IDEMPOTENCY_KEY": "k"}
        return idempotent_view(**options)(create)(RequestFactory().post("/", json.dumps({}), "text/plain", **headers))

    with pytest.raises(WrongDatabase, match="using="):
        ask()
    assert effects() == 0
    assert [ask(using="default").status_code for _ in range(2)] == [201, 201]
    assert effects() == 1


def test_an_error_leaves_no_guard_behind():
    with pytest.raises(WrongDatabase):
        sell()
    assert [wrapper for alias in connections for wrapper in connections[alias].execute_wrappers] == []
    Ticket.objects.create(number="free")


@pytest.mark.django_db(databases=["default", "queue"])
@finding("H5")
def test_in_a_test_case_it_is_as_in_production():
    with once("a"):
        pass
    with pytest.raises(TransactionRequired):
        in_transaction(sell)
