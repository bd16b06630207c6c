"""No more jobs are opened than may start, also while nobody claims: all threads are busy, or the queue is paused."""

import time

import pytest

from jobqueue.gates.waiting import unclaimed
from jobqueue.models import Job
from jobqueue.testing import travel
from jobqueue.transitions import ack, cancel
from tests.gates import jobs
from tests.gates.helpers import add, look_again, open_in_time, sweep, take, taken

pytestmark = pytest.mark.django_db


def open_jobs():
    return Job.objects.filter(status=Job.Status.READY, gate=0).count()


@pytest.fixture
def paced(limited):
    return limited(rate_limit="10/s")


def test_a_rate_opens_one_bucket_at_most_while_nobody_claims(paced):
    add(60, paced)
    with travel(0) as clock:
        assert len(taken()) == 10
        taken()
        for _ in range(100):
            clock.forward(0.06)
            open_in_time()
        assert open_jobs() == 10
        assert len(taken()) >= 10


def test_the_tokens_after_them_are_met_in_time_as_soon_as_there_are_claims(paced):
    # As many as one claim looks at: on a busy machine the second one would find a token for a job behind them.
    ids = add(100, paced)
    with travel(0) as clock:
        found = taken() + taken()
        for _ in range(50):
            clock.forward(0.06)
            open_in_time()
        found += taken()
        assert found == ids[: len(found)]
        assert len(found) >= 20
        began, before = time.monotonic(), len(found)
        for number in range(1, 6):
            clock.forward(0.101)
            open_in_time()
            more = taken()
            assert more
            found += more
            # The clock goes on by itself, too: that is a long time on a busy machine.
            assert len(found) - before <= 10 * (0.101 * number + time.monotonic() - began) + 1
        assert found == ids[: len(found)]


def test_one_at_a_time_is_claimed_as_fast_as_the_rate(paced):
    ids = add(60, paced)
    with travel(0) as clock:
        begun = len(taken() + taken())
        clock.forward(2)
        open_in_time()
        assert open_jobs() == 10
        for number in range(begun, begun + 30):
            assert taken(1) == [ids[number]]
            clock.forward(0.101)
            open_in_time()
        assert open_jobs() == 10


def test_each_key_has_its_own_bucket_that_is_not_passed(limited):
    work = limited(rate_limit="1/s", concurrency_key=jobs.by_argument)
    for key in "aaabbb":
        work.enqueue(key)
    with travel(0) as clock:
        assert len(taken()) == 2
        taken()
        for _ in range(30):
            clock.forward(0.5)
            open_in_time()
        assert open_jobs() == 2


def test_sweeps_open_no_more_than_the_free_slots(limited):
    ids = add(20, limited(concurrency_limit=2))
    leases = take()
    for lease in leases.values():
        ack(lease)
    for _ in range(5):
        sweep()
        look_again()
    assert open_jobs() <= 2
    assert taken() == ids[2:4]


def test_a_job_that_was_opened_and_canceled_holds_no_slot(limited):
    first, second, third = add(3, limited(concurrency_limit=1))
    ack(take()[first])
    assert open_jobs() == 1
    cancel(second)
    sweep()
    assert taken() == [third]


def test_a_job_that_nobody_has_claimed_for_ten_minutes_counts_no_more(limited, monkeypatch):
    first, *_ = add(4, limited(concurrency_limit=1))
    ack(take()[first])
    monkeypatch.setattr("jobqueue.gates.waiting.SECONDS_MAX", -1.0)
    sweep()
    assert open_jobs() == 2


def test_the_jobs_that_are_remembered_are_few(monkeypatch):
    monkeypatch.setattr("jobqueue.gates.waiting.JOBS_MAX", 3)
    monkeypatch.setattr("jobqueue.gates.waiting.SUBJECTS_MAX", 2)
    for subject in range(5):
        unclaimed.add(subject, range(10 * subject, 10 * subject + 10), "default")
    assert {key: list(ids) for key, ids in unclaimed._known.items()} == {
        ("default", 3): [37, 38, 39],
        ("default", 4): [47, 48, 49],
    }
