"""Several processes at the lanes at once: one open job per key, in the order of the commits, none left standing."""

import pytest

from jobqueue import enqueue, enqueue_many
from jobqueue.maintenance import sweeps
from jobqueue.models import Job, LaneEntry
from jobqueue.ordering.lanes import lane_of
from jobqueue.ordering.promote import promote
from jobqueue.producer import dedupe
from jobqueue.transitions import ack, ack_many, cancel, claim, discard, fail, resume, retry
from tests.factories import claim_one, lease_with, undone
from tests.marks import committed
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

pytestmark = committed
needs_row_locks = pytest.mark.skipif(
    VENDOR == "sqlite", reason="SQLite has one writer at a time: a second transaction waits for the first"
)
ROUNDS = 10


def add(n):
    return enqueue("q", n, ordering_key="k")


def claimed():
    return [lease.job_id for lease in claim("q", 100, worker="w")]


def check_lane():
    """At most one open job, the head; and a lane that goes on needs no sweep."""
    assert sweeps.OrderingSweep().sweep_all(None, using="default")["jobs_opened"] == 0, (
        "the key was left standing still"
    )
    places = LaneEntry.objects.order_by("id").values_list("job__status", "job__gate")
    alive = [place for place in places if place[0] in (Job.Status.READY, Job.Status.PROCESSING)]
    assert [gate for _, gate in alive[1:]] == [1] * (len(alive) - 1), "a job behind the head is open"


@needs_row_locks
def test_an_ack_does_not_wait_for_a_transaction_that_enqueues_with_the_same_key():
    first = add(1)
    lease = claim_one()
    with holding(lambda: add(2)) as second:
        Actor(ack, lease).result()
        assert claimed() == []
    # Its own commit, which came last, has opened it.
    assert claimed() == [second]
    assert first < second


@needs_row_locks
@pytest.mark.parametrize("used_before", [True, False])
def test_a_second_enqueue_waits_for_the_first_transaction_and_comes_after_it(used_before):
    if used_before:
        ack_all(add(0))
    with holding(lambda: add(1)) as first:
        other = Actor(add, 2)
        assert other.is_blocked()
    second = other.result()
    assert claimed() == [first]
    assert list(LaneEntry.objects.order_by("id").values_list("job_id", flat=True)) == [first, second]


@needs_row_locks
def test_a_second_enqueue_goes_ahead_when_the_first_transaction_is_rolled_back():
    with holding(lambda: add(1), commit=False):
        other = Actor(add, 2)
        assert other.is_blocked()
    second = other.result()
    assert claimed() == [second]


@needs_row_locks
def test_enqueues_with_different_keys_and_without_do_not_wait():
    with holding(lambda: add(1)):
        ids = Actor(lambda: [enqueue("q", 1, ordering_key="other"), enqueue("q", 2), enqueue("p", 3, ordering_key="k")])
        here = ids.result()[:2]
        assert claimed() == here


@needs_row_locks
def test_a_canceled_job_that_is_retried_while_the_one_before_it_ends_is_not_lost():
    first, second, third = enqueue_many("q", range(3), ordering_key="k")
    lease = claim_one()
    assert lease.job_id == first
    cancel(second)
    with holding(lambda: retry(second)):
        Actor(ack, lease).result()
        assert claimed() == []
    for expected in (second, third):
        (lease,) = claim("q", 100, worker="w")
        assert lease.job_id == expected
        ack(lease)
    assert not LaneEntry.objects.exists()


@needs_row_locks
@pytest.mark.parametrize("verb", [cancel, discard])
def test_an_ack_does_not_wait_for_a_transaction_that_cancels_the_next_job(verb):
    _first, second, third = enqueue_many("q", range(3), ordering_key="k")
    lease = claim_one()
    with holding(lambda: verb(second)):
        Actor(ack, lease).result()
        assert claimed() == []
    assert claimed() == [third]


@needs_row_locks
def test_other_keys_go_on_while_a_transaction_has_locked_a_job_of_one():
    enqueue_many("q", range(2), ordering_key="k")
    _other, next_of_other = enqueue_many("q", range(2), ordering_key="other")
    leases = claim("q", 10, worker="w")
    waiting = Job.objects.filter(gate=1).exclude(pk=next_of_other)
    with holding(lambda: list(waiting.select_for_update())):
        assert Actor(ack_many, leases).result() == []
        assert claimed() == [next_of_other]
    assert sweeps.OrderingSweep().sweep_all(None, using="default")["jobs_opened"] == 1


def test_a_job_without_dedupe_key_is_opened_although_its_neighbour_lost_a_race(monkeypatch):
    held = enqueue("q", 0, dedupe_key="d")
    # As if that had been committed between the look and the INSERT.
    monkeypatch.setattr(dedupe, "holders", lambda *_, **__: dedupe.Holders())
    _, second = enqueue_many("q", [1, 2], ordering_key="k", dedupe_keys=["d", None])
    assert set(claimed()) == {held, second}


def ack_all(*_):
    for lease in claim("q", 100, worker="w"):
        ack(lease)


def test_an_enqueue_beside_an_ack_is_opened_by_one_of_them():
    for _ in range(ROUNDS):
        add(1)
        lease = claim_one()
        _, second = all_at_once([lambda lease=lease: ack(lease), lambda: add(2)])
        check_lane()
        assert claimed() == [second]
        discard_all()


def test_many_that_advance_a_lane_open_one_job():
    for _ in range(ROUNDS):
        first, second, _third = enqueue_many("q", range(3), ordering_key="k")
        Job.objects.filter(pk=first).update(status=Job.Status.CANCELED)
        opened = all_at_once([lambda: promote([lane_of("q", b"k")], using="default")] * 4)
        assert sum(opened) == 1
        check_lane()
        assert claimed() == [second]
        discard_all()


def test_a_retry_beside_those_who_leave_the_job_behind_keeps_one_job_open():
    for _ in range(ROUNDS):
        first, second = enqueue_many("q", range(2), ordering_key="k")
        fail(lease_with(claim_one(), max_attempts=1), error="boom", retry=False)
        retried, resumed = all_at_once([lambda first=first: retry(first), lambda: resume("q", "k")])
        assert retried is True
        check_lane()
        assert claimed() == ([second] if resumed else [first])
        discard_all()


def test_a_discard_beside_a_retry_keeps_one_job_open():
    for _ in range(ROUNDS):
        first, _second = enqueue_many("q", range(2), ordering_key="k")
        fail(lease_with(claim_one(), max_attempts=1), error="boom", retry=False)
        all_at_once([lambda first=first: retry(first), lambda first=first: discard(first), lambda: promote_k()])
        check_lane()
        assert len(claimed()) == 1
        discard_all()


def test_cancels_of_the_whole_lane_at_once_leave_it_empty():
    for _ in range(ROUNDS):
        ids = enqueue_many("q", range(5), ordering_key="k")
        assert all_at_once([lambda job_id=job_id: cancel(job_id) for job_id in ids]) == [True] * 5
        check_lane()
        assert not LaneEntry.objects.exists()


def test_enqueues_of_many_threads_with_rollbacks_run_in_the_order_of_their_places():
    def rolled_back():
        with undone():
            add(0)

    all_at_once([lambda: [add(n) for n in range(10)], lambda: [add(n) for n in range(10)], rolled_back, rolled_back])
    expected = list(LaneEntry.objects.order_by("id").values_list("job_id", flat=True))
    seen = []
    while leases := claim("q", 100, worker="w"):
        assert len(leases) == 1
        ack(leases[0])
        seen.append(leases[0].job_id)
    assert seen == expected
    assert len(seen) == 20


def promote_k():
    return promote([lane_of("q", b"k")], using="default")


def discard_all():
    Job.objects.all().delete()
    sweeps.OrderingSweep().sweep_all(None, using="default")
    assert not LaneEntry.objects.exists()
