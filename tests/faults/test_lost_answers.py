"""The server has done its work and its answer never arrives: what may not be done twice is not done twice."""

import pytest
from django.db.models import F

from jobqueue import enqueue, enqueue_many
from jobqueue.allocate import take
from jobqueue.bulk import update_in_chunks
from jobqueue.counter import ShardedCounter
from jobqueue.exceptions import OutcomeUnknown
from jobqueue.models import Job
from tests.app.models import Account, Ticket
from tests.marks import committed, finding
from tests.proxy import COMMIT, cutting_proxy
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no wire to lose an answer on")]
on_postgresql = pytest.mark.skipif(VENDOR != "postgres", reason="the words of psycopg were taken for never sent")
elsewhere = pytest.mark.skipif(VENDOR == "postgres", reason="see the test of the finding")


def free():
    return Ticket.objects.filter(sold=False).order_by("number")


def accounts():
    return Account.objects.order_by("pk")


def balances():
    return list(accounts().values_list("balance", flat=True))


def sold():
    return Ticket.objects.filter(sold=True).count()


# What cuts it, the call, what shows how often it was done, and what that is after one call.
ONE_CALL = {
    "enqueue": (r"INSERT INTO .job_queue", lambda: enqueue("q", 1), Job.objects.count, 1),
    "enqueue_many": (COMMIT, lambda: enqueue_many("q", [1, 2, 3]), Job.objects.count, 3),
    "enqueue_many, ordered": (COMMIT, lambda: enqueue_many("q", [1, 2], ordering_key="k"), Job.objects.count, 2),
    "counter": (r"job_counter", lambda: ShardedCounter("hits").add(1), lambda: ShardedCounter("hits").value(), 1),
    "update_in_chunks": (
        rf"UPDATE .app_account|{COMMIT}",
        lambda: update_in_chunks(accounts(), {"balance": F("balance") + 1}),
        balances,
        [1, 1],
    ),
    "take": (COMMIT, lambda: take(free(), 1, changes={"sold": True}), sold, 1),
}


def setup():
    Ticket.objects.bulk_create(Ticket(number=f"t{n}") for n in range(3))
    Account.objects.bulk_create([Account(owner="ann"), Account(owner="bob")])


def call_once(name):
    needle, call, count, wanted = ONE_CALL[name]
    setup()
    with cutting_proxy() as proxy:
        count()
        proxy.cut(needle)
        try:
            call()
            outcome = "an answer"
        except OutcomeUnknown as error:
            outcome = str(error)
        assert proxy.cuts == 1
    assert count() == wanted
    assert "may or may not have happened" in outcome


@finding("A1")
@on_postgresql
@pytest.mark.parametrize("name", ONE_CALL)
def test_a_lost_answer_of_postgresql_is_an_unknown_outcome_and_no_reason_to_repeat(name):
    call_once(name)


@elsewhere
@pytest.mark.parametrize("name", ONE_CALL)
def test_a_lost_answer_is_an_unknown_outcome_and_no_reason_to_repeat(name):
    call_once(name)


@pytest.mark.parametrize("times", [1, 2])
def test_what_has_a_key_is_repeated_and_finds_its_own_work(times):
    """Cut twice, it was done once all the same."""
    with cutting_proxy() as proxy:
        proxy.cut(rf"INSERT INTO .job_queue|{COMMIT}", times)
        try:
            job_id = enqueue("q", 1, dedupe_key="k")
        except OutcomeUnknown:
            assert times == 2
            job_id = enqueue("q", 1, dedupe_key="k")
        assert proxy.cuts == times
    assert [job.pk for job in Job.objects.all()] == [job_id]


def test_a_taken_row_is_given_again_to_its_request():
    setup()
    with cutting_proxy() as proxy:
        assert free().count() == 3
        proxy.cut(COMMIT)
        (row,) = take(free(), 1, changes={"sold": True}, request_id="r")
        assert proxy.cuts == 1
    assert [ticket.pk for ticket in Ticket.objects.filter(sold=True)] == [row.pk]


@on_postgresql
def test_a_session_that_is_cut_before_it_begins_was_not_sent_anything():
    """So it is tried again, and the next session is good."""
    with cutting_proxy() as proxy:
        proxy.cut(r".", 1)
        assert enqueue("q", 1)
        assert proxy.cuts == 1
    assert Job.objects.count() == 1
