"""rate_limit: how fast the jobs of a task, or of each key, start."""

from datetime import timedelta

import pytest

from jobqueue.db.clock import read_now
from jobqueue.models import Gate, Job
from jobqueue.testing import travel
from jobqueue.transitions import ack_many, fail, release
from tests.factories import job, make_due, make_job, now, set_columns, was_ahead
from tests.gates import jobs
from tests.gates.helpers import add, open_in_time, take, taken, waiting

pytestmark = pytest.mark.django_db


def test_a_second_s_worth_starts_at_once_and_the_rest_waits(limited):
    ids = add(5, limited(rate_limit="3/s"))
    assert taken() == ids[:3]
    assert taken() == []
    assert waiting() == ids[3:]


def test_starts_count_although_no_other_job_waits(limited):
    paced = limited(rate_limit="2/m")
    (first,) = add(1, paced)
    assert taken() == [first]
    (second,) = add(1, paced)
    assert taken() == []
    assert waiting() == [second]


@pytest.mark.parametrize("rate", ["100/h", "1/m", "0.5/s", "5/30s"])
def test_a_slow_rate_lets_one_job_start_at_a_time(limited, rate):
    first, second = add(2, limited(rate_limit=rate))
    assert taken() == [first]
    assert taken() == []
    assert waiting() == [second]


def test_jobs_start_as_tokens_come_back_in_their_order(limited):
    ids = add(6, limited(rate_limit="2/s"))
    with travel(0) as clock:
        assert taken() == ids[:2]
        assert taken() == []
        clock.forward(0.55)
        open_in_time()
        assert taken() == ids[2:3]
        clock.forward(10)
        open_in_time()
        assert taken() == ids[3:5], "never more than a bucket"
        assert taken() == []


def test_no_job_is_opened_before_its_token_is_there(limited):
    add(3, limited(rate_limit="1/m"))
    with travel(0) as clock:
        taken()
        assert taken() == []
        clock.forward(50)
        assert open_in_time() == 0
        clock.forward(11)
        assert open_in_time() == 1


def test_the_gate_says_when_the_next_job_may_start(limited):
    add(2, limited(rate_limit="6/m"))
    begun = now()
    taken()
    (opens_at,) = Gate.objects.exclude(opens_at=None).values_list("opens_at", flat=True)
    assert was_ahead(opens_at, 0, 10, since=begun)


def test_a_start_counts_and_not_how_the_job_ends(limited):
    first, second, _ = add(3, limited(rate_limit="1/m"))
    leases = take()
    release(leases[first])
    assert taken() == []
    assert set(waiting()) == {first, second, second + 1}


def test_a_retry_is_a_start_too(limited):
    first, second = add(2, limited(rate_limit="2/m"))
    fail(take(1)[first], error="boom", delay_seconds=0)
    make_due(first)
    assert taken() == []
    assert set(waiting()) == {first, second}


def test_each_key_has_its_own_rate(limited):
    work = limited(rate_limit="1/m", concurrency_key=jobs.by_argument)
    a1, a2, b1, b2 = (int(work.enqueue(key).id) for key in "aabb")
    free = add(1, work, "")
    assert taken() == [a1, b1, *free]
    assert waiting() == [a2, b2]


def test_the_rates_of_two_queues_are_their_own(limited):
    work = limited(rate_limit="1/m")
    here, _ = add(2, work)
    there, _ = add(2, work.using(queue_name="elsewhere"))
    assert taken() == [here]
    assert taken(queue="elsewhere") == [there]


def test_jobs_without_rate_start_beside_those_that_wait(limited):
    first, *_ = add(30, limited(rate_limit="1/m"))
    raw = make_job("q")
    (plain,) = add(1, limited(jobs.other))
    assert taken(3) == [first, raw, plain]


class TestWithALimitOfSlots:
    def test_both_hold(self, limited):
        ids = add(6, limited(rate_limit="3/m", concurrency_limit=2))
        assert taken() == ids[:1], "a slow rate has a bucket of one"
        assert taken() == []

    def test_no_token_is_used_by_a_job_that_has_no_slot(self, limited):
        ids = add(6, limited(rate_limit="4/s", concurrency_limit=2))
        with travel(0):
            leases = take()
            assert list(leases) == ids[:2]
            for _ in range(3):
                assert taken() == []
            ack_many(list(leases.values()))
            assert taken() == ids[2:4], "two of four tokens were left"

    def test_no_slot_is_kept_by_a_job_that_has_no_token(self, limited):
        ids = add(4, limited(rate_limit="1/m", concurrency_limit=3))
        with travel(0) as clock:
            assert taken() == ids[:1]
            assert taken() == []
            for expected in ids[1:3]:
                clock.forward(61)
                open_in_time()
                assert taken() == [expected]
            clock.forward(61)
            open_in_time()
            assert taken() == [], "three run"


def test_a_job_that_waits_for_a_token_was_never_claimed(limited):
    first, *rest = add(4, limited(rate_limit="1/m"))
    assert taken() == [first]
    assert taken() == []
    rows = Job.objects.filter(pk__in=rest)
    assert set(rows.values_list("fence", "attempts", "locked_by")) == {(0, 0, None)}


def test_a_delayed_job_takes_no_token_before_it_is_due(limited):
    work = limited(rate_limit="1/m")
    (late,) = add(1, work.using(run_after=read_now("default") + timedelta(hours=1)))
    (first,) = add(1, work)
    assert taken() == [first]
    assert job(late).gate == 0


def test_a_job_opened_for_a_token_that_has_expired_meanwhile_uses_none(limited):
    first, second, third = add(3, limited(rate_limit="1/m"))
    with travel(0) as clock:
        assert taken() == [first]
        assert taken() == []
        set_columns(second, expires_at=job(second).created_at)
        clock.forward(61)
        open_in_time()
        assert taken() == []
        open_in_time()
        clock.forward(2)
        open_in_time()
        assert taken() == [third]
