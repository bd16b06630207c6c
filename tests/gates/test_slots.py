"""concurrency_limit: so many jobs of a task, or of each key, run at once, whatever becomes of those that run."""

import pytest

from jobqueue.models import GateSlot, Job
from jobqueue.transitions import (
    ack,
    ack_many,
    cancel,
    cancel_held,
    discard,
    fail,
    heartbeat,
    reap,
    release,
    retry,
    snooze,
)
from tests.factories import expire, job, make_job, set_columns, state
from tests.gates import jobs
from tests.gates.helpers import add, sweep, take, taken, waiting

pytestmark = pytest.mark.django_db

ENDS = {
    "ack": ack,
    "ack_many": lambda lease: ack_many([lease]),
    "fail": lambda lease: fail(lease, error="boom", delay_seconds=3600),
    "snooze": lambda lease: snooze(lease, delay_seconds=3600),
    "cancel_held": cancel_held,
}


def test_no_more_jobs_of_a_task_run_than_its_limit(limited):
    first, second, third, *_ = add(5, limited(concurrency_limit=3))
    assert taken() == [first, second, third]
    assert taken() == []


def test_a_claim_for_one_job_after_another_stops_at_the_limit(limited):
    ids = add(4, limited(concurrency_limit=2))
    assert [taken(1) for _ in range(3)] == [[ids[0]], [ids[1]], []]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_lease_that_ends_lets_the_first_waiting_job_start(limited, end):
    first, second, third = add(3, limited(concurrency_limit=1))
    end(take()[first])
    assert taken() == [second]
    assert taken() == []
    assert waiting() == [third]


def test_a_job_that_is_given_back_starts_again_before_those_that_wait(limited):
    first, _second = add(2, limited(concurrency_limit=1))
    release(take()[first])
    assert taken() == [first]


def test_all_of_a_thousand_jobs_run_in_their_order(limited):
    ids = add(100, limited(concurrency_limit=7))
    done = []
    while leases := take():
        assert len(leases) <= 7
        done += leases
        assert ack_many(list(leases.values())) == []
    assert done == ids


def test_a_waiting_job_with_a_higher_priority_starts_first(limited):
    work = limited(concurrency_limit=1)
    (running,) = add(1, work)
    lease = take()[running]
    (low,) = add(1, work)
    (high,) = add(1, work.using(priority=5))
    assert taken() == []
    ack(lease)
    assert taken() == [high]
    assert waiting() == [low]


def test_jobs_behind_full_tasks_are_claimed_in_the_same_call(limited):
    full, free = limited(concurrency_limit=1), limited(jobs.other)
    first, *_ = add(40, full)
    others = add(3, free)
    raw = make_job("q")
    assert taken(4) == [first, *others]
    assert taken() == [raw]


def test_jobs_that_wait_are_not_read_by_later_claims(limited, django_assert_max_num_queries):
    first, *rest = add(50, limited(concurrency_limit=1))
    assert taken() == [first]
    assert taken() == []
    assert waiting() == rest
    fences = set(Job.objects.filter(pk__in=rest).values_list("fence", "attempts"))
    assert fences == {(0, 0)}, "a job that waits was not claimed and put back"


def test_the_limits_of_two_tasks_and_of_two_queues_are_their_own(limited):
    one, two = limited(concurrency_limit=1), limited(jobs.other, concurrency_limit=2)
    first, _ = add(2, one)
    a, b, _ = add(3, two)
    elsewhere, _ = add(2, one.using(queue_name="elsewhere"))
    assert taken() == [first, a, b]
    assert taken(queue="elsewhere") == [elsewhere]


class TestAKey:
    def test_has_its_own_slots(self, limited):
        work = limited(concurrency_key=jobs.by_argument, concurrency_limit=1)
        a, _, b, _ = (int(work.enqueue(key).id) for key in "aabb")
        assert taken() == [a, b]
        assert taken() == []

    def test_may_have_several(self, limited):
        work = limited(concurrency_key=jobs.by_argument, concurrency_limit=2)
        a1, a2, _, b1 = (int(work.enqueue(key).id) for key in "aaab")
        assert taken() == [a1, a2, b1]

    def test_that_is_none_does_not_bind_its_job_to_any_key(self, limited):
        work = limited(concurrency_key=jobs.by_argument, concurrency_limit=1)
        a, _ = add(2, work, "a")
        free = add(1, work, "")
        assert taken() == [a, *free]

    def test_is_shared_by_the_tasks_of_a_queue(self, limited):
        fields = {"concurrency_key": jobs.by_argument, "concurrency_limit": 1}
        one, two = limited(**fields), limited(jobs.other, **fields)
        (first,) = add(1, one, "customer-7")
        (second,) = add(1, two, "customer-7")
        lease = take()[first]
        assert taken() == []
        ack(lease)
        assert taken() == [second]

    def test_is_one_of_each_queue(self, limited):
        work = limited(concurrency_key=jobs.by_argument, concurrency_limit=1)
        here, _ = add(2, work, "a")
        there, _ = add(2, work.using(queue_name="elsewhere"), "a")
        assert taken() == [here]
        assert taken(queue="elsewhere") == [there]

    def test_may_be_given_by_using_or_by_plain_sql(self, limited):
        work = limited(concurrency_limit=1, concurrency_key="all")
        (first,) = add(1, work.using(concurrency_key="mine"))
        (second,) = add(1, work)
        by_sql = add(1, work)[0]
        set_columns(by_sql, concurrency_key=b"mine")
        assert taken() == [first, second]
        assert waiting() == [by_sql]

    def test_of_any_bytes_keeps_its_jobs_apart(self, limited):
        work = limited(concurrency_limit=1, concurrency_key=jobs.by_argument)
        keys = [b"\xff\x00", b"\xff\x00 ", b"\xff", "a", "A", "\u00e9"]
        first = [add(1, work.using(concurrency_key=key), "x")[0] for key in keys]
        _second = [add(1, work.using(concurrency_key=key), "x")[0] for key in keys]
        assert taken() == first


class TestALeaseThatRunsOut:
    def test_keeps_its_slot_until_it_is_reaped(self, limited):
        first, _ = add(2, limited(concurrency_limit=1))
        expire(take()[first])
        assert taken() == []

    def test_gives_its_slot_to_its_own_job_first(self, limited):
        first, second = add(2, limited(concurrency_limit=1))
        expire(take()[first])
        assert reap().requeued == 1
        assert taken() == [first]
        assert waiting() == [second]

    def test_gives_its_slot_to_the_next_one_at_once_if_its_job_is_dead(self, limited):
        first, second = add(2, limited(concurrency_limit=1, max_attempts=1))
        lease = take()[first]
        assert taken() == []
        expire(lease)
        assert reap().dead == 1
        assert taken() == [second]

    def test_whose_holder_comes_back_late_cannot_free_the_slot_of_the_next_one(self, limited):
        first, second = add(2, limited(concurrency_limit=1, max_attempts=1))
        late = take()[first]
        expire(late)
        reap()
        assert taken() == [second]
        (third,) = add(1, limited(concurrency_limit=1))
        assert ack_many([late]) == [late]
        assert taken() == []
        assert waiting() == [third]

    def test_that_was_claimed_again_counts_once(self, limited):
        first, second, third = add(3, limited(concurrency_limit=2))
        leases = take()
        expire(leases[first])
        reap()
        assert taken() == [first]
        assert waiting() == [third]
        ack(leases[second])
        assert taken() == [third]


def test_a_job_that_comes_back_to_another_slot_has_one_and_not_two(limited):
    work = limited(concurrency_limit=2)
    first, second = add(2, work)
    leases = take()
    ack(leases[first])
    release(leases[second])
    assert taken() == [second]
    (third,) = add(1, work)
    assert taken() == [third]


def test_a_job_that_goes_on_in_another_queue_leaves_its_slot_behind(limited):
    first, second = add(2, limited(concurrency_limit=1))
    release(take()[first])
    set_columns(first, queue="elsewhere")
    assert taken(queue="elsewhere") == [first]
    assert taken() == [second]


def test_heartbeats_keep_the_slot(limited):
    first, _ = add(2, limited(concurrency_limit=1))
    lease = take()[first]
    heartbeat(lease, lease_seconds=600)
    assert taken() == []


def test_a_row_that_plain_sql_has_ended_holds_no_slot(limited, sql):
    first, second = add(2, limited(concurrency_limit=1))
    take()
    sql(
        "UPDATE job_queue SET status = 2, lock_token = NULL, locked_by = NULL, locked_at = NULL, lock_until = NULL "
        "WHERE id = %s",
        [first],
    )
    sweep()
    assert taken() == [second]


def test_a_row_that_was_deleted_holds_no_slot(limited):
    first, second = add(2, limited(concurrency_limit=1))
    take()
    Job.objects.filter(pk=first).delete()
    sweep()
    assert taken() == [second]


@pytest.mark.parametrize("verb", [cancel, discard])
def test_a_waiting_job_that_is_canceled_lets_the_one_behind_it_start(limited, verb):
    first, second, third = add(3, limited(concurrency_limit=1))
    lease = take()[first]
    assert taken() == []
    assert verb(second)
    ack(lease)
    assert taken() == [third]


def test_a_waiting_job_that_is_canceled_and_retried_starts_when_there_is_a_slot(limited):
    first, second = add(2, limited(concurrency_limit=1))
    lease = take()[first]
    assert taken() == []
    assert cancel(second)
    sweep()
    assert retry(second)
    assert taken() == []
    assert job(second).wait_reason
    ack(lease)
    assert taken() == [second]


def test_a_canceled_job_that_waited_and_is_retried_beside_a_free_slot_starts_at_once(limited):
    first, second = add(2, limited(concurrency_limit=1))
    lease = take()[first]
    assert taken() == []
    assert cancel(second)
    ack(lease)
    sweep()
    assert retry(second)
    assert taken() == [second]


def test_a_job_that_has_expired_while_it_waited_is_canceled_and_takes_no_slot(limited):
    first, second, third = add(3, limited(concurrency_limit=1))
    lease = take()[first]
    assert taken() == []
    set_columns(second, expires_at=job(second).created_at)
    ack(lease)
    assert taken() + taken() == [third]
    assert state(second) == "CANCELED"


def test_a_job_that_waits_for_its_ordering_key_takes_no_slot(limited):
    work = limited(concurrency_limit=2)
    first, _second = add(2, work.using(ordering_key="k"))
    (free,) = add(1, work)
    assert taken() == [first, free]


def test_an_ordering_key_keeps_its_order_while_its_jobs_wait_for_slots(limited):
    work = limited(concurrency_limit=1)
    (running,) = add(1, work)
    ids = add(3, work.using(ordering_key="k"))
    lease = take()[running]
    assert taken() == []
    for expected in ids:
        ack(lease)
        leases = take()
        assert list(leases) == [expected]
        lease = leases[expected]


def test_jobs_without_limits_write_no_slot(plain):
    add(3, plain)
    assert len(taken()) == 3
    assert not GateSlot.objects.exists()
