"""Several claimers at once: nobody waits for anybody, and no job is taken twice."""

import threading

import pytest
from django.db import connection

from jobqueue import enqueue, enqueue_many
from jobqueue.db import vendor
from jobqueue.models import Job
from jobqueue.transitions import ack, cancel, claim
from jobqueue.transitions.claiming import candidates
from jobqueue.transitions.claiming.select_then_update import lock_due
from tests.factories import job, make_job, make_jobs, state
from tests.marks import committed
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

pytestmark = committed
needs_row_locks = pytest.mark.skipif(
    VENDOR == "sqlite", reason="SQLite has one writer at a time: a second transaction waits for the first"
)


def open_claim(limit):
    """A claim of `limit` jobs that does not come to its end: its transaction is begun as claim() begins it."""
    return holding(lambda: lock(limit), begin=lambda: vendor("default").transaction(connection))


def lock(limit, queue="q"):
    """The rows a claim locks, in the transaction that is open."""
    return [row.pk for row in lock_due(queue, limit, candidates.due_levels(queue, using="default"), using="default")]


@needs_row_locks
def test_a_second_claimer_gets_its_own_ten_while_the_first_transaction_is_open():
    ids = make_jobs(50)
    with open_claim(10) as first:
        second = [lease.job_id for lease in Actor(claim, "q", 10, worker="b").result()]
        third = [lease.job_id for lease in Actor(claim, "q", 10, worker="c").result()]
    assert (first, second, third) == (ids[:10], ids[10:20], ids[20:30])


@needs_row_locks
def test_a_second_claimer_gets_its_own_ten_out_of_five_levels_and_delayed_jobs():
    enqueue_many("q", range(100))
    for priority in range(5):
        enqueue_many("q", range(20), priority=priority)
    Job.objects.filter(pk__in=make_jobs(30, priority=9)).update(run_at="2090-01-01T00:00:00Z")
    with open_claim(10) as first:
        second = [lease.job_id for lease in Actor(claim, "q", 10, worker="b").result()]
    assert len(set(first) | set(second)) == 20
    assert {job(job_id).priority for job_id in first + second} == {4}


@needs_row_locks
def test_enqueue_is_not_blocked_by_an_open_claim():
    make_jobs(20)
    with open_claim(10):
        made = Actor(lambda: [enqueue("q", 1, priority=p) for p in (-1, 0, 1)]).result()
        many = Actor(lambda: enqueue_many("q", range(100))).result()
        keyed = Actor(lambda: enqueue("q", 1, dedupe_key="k")).result()
    assert len({*made, *many, keyed}) == 104


@needs_row_locks
def test_enqueue_is_not_blocked_by_a_claim_of_all_there_is():
    make_jobs(5)
    with open_claim(10) as first:
        job_id = Actor(lambda: enqueue("q", 1)).result()
        assert [lease.job_id for lease in Actor(claim, "q", 10, worker="b").result()] == [job_id]
    assert len(first) == 5


@needs_row_locks
def test_an_open_claim_blocks_neither_settling_nor_cancelling_of_other_jobs():
    running, other, *_ = make_jobs(12)
    (lease,) = claim("q", worker="w")
    assert lease.job_id == running
    with open_claim(1) as first:
        assert first == [other]
        Actor(ack, lease).result()
        assert Actor(cancel, other + 1).result()
    assert state(running) == "DONE"


def test_cancel_and_a_claim_of_the_same_job_have_one_winner():
    for _ in range(10):
        job_id = make_job()
        leases, canceled = all_at_once([lambda: claim("q", worker="w"), lambda: cancel(job_id)])  # noqa: B023
        assert canceled is True
        if leases:
            assert job(job_id).cancel_requested_at is not None
            assert state(job_id) == "PROCESSING"
        else:
            assert state(job_id) == "CANCELED"


@pytest.mark.parametrize("threads", [2, 8])
def test_racing_claimers_never_share_a_job(threads):
    ids = enqueue_many("q", range(400))
    taken, guard = [], threading.Lock()

    def work(name):
        while leases := claim("q", 7, worker=name):
            with guard:
                taken.extend(leases)
            ack(leases[0])

    outcomes = all_at_once([lambda name=f"w{n}": work(name) for n in range(threads)])
    assert outcomes == [None] * threads
    assert sorted(lease.job_id for lease in taken) == ids
    assert len({lease.token for lease in taken}) >= 400 / 7
    assert set(Job.objects.values_list("fence", flat=True)) == {1}


def test_claimers_that_race_with_producers_miss_nothing():
    stop = threading.Event()
    taken, made, guard = [], [], threading.Lock()

    def produce(priority):
        for number in range(40):
            job_id = enqueue("q", number, priority=priority)
            with guard:
                made.append(job_id)

    def consume(name):
        while not stop.is_set() or Job.objects.due().exists():
            leases = claim("q", 5, worker=name)
            with guard:
                taken.extend(lease.job_id for lease in leases)
            for lease in leases:
                ack(lease)

    consumers = [Actor(consume, f"w{n}") for n in range(3)]
    assert all_at_once([lambda p=p: produce(p) for p in range(3)]) == [None] * 3
    stop.set()
    for consumer in consumers:
        consumer.result()
    assert sorted(taken) == sorted(made)
    assert set(Job.objects.values_list("status", flat=True)) == {Job.Status.DONE}


def test_a_claim_whose_transaction_is_undone_takes_nothing():
    ids = make_jobs(3)
    with holding(lambda: vendor("default") and lock(3), commit=False):
        pass
    connection.close()
    assert [lease.job_id for lease in claim("q", 3, worker="w")] == ids
