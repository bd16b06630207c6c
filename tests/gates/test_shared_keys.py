"""Tasks with limits of their own may share a concurrency key of their queue: each job goes by the limit of its task."""

import pytest

from jobqueue import flow, task
from jobqueue.gates import timing
from jobqueue.maintenance.worker_rows import register
from jobqueue.models import Gate
from jobqueue.transitions import ack, cancel
from tests.gates import jobs
from tests.gates.helpers import add, look_again, open_in_time, sweep, take, taken, waiting
from tests.marks import finding

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("own_registry")]


def tasks(wide=5, narrow=1, **fields):
    """Two tasks with the same key, of which `wide` and `narrow` jobs may run at once."""
    common = {"queue_name": "q", "concurrency_key": jobs.by_argument, **fields}
    return task(concurrency_limit=wide, **common)(jobs.work), task(concurrency_limit=narrow, **common)(jobs.other)


def test_a_job_of_the_smaller_limit_waits_while_another_of_its_key_runs():
    wide, narrow = tasks()
    first = add(1, wide, "k")
    add(3, narrow, "k")
    assert taken() == first
    assert taken() == []


def test_jobs_of_the_larger_limit_do_not_wait_behind_it():
    wide, narrow = tasks()
    add(1, wide, "k")
    assert len(taken()) == 1
    behind = add(2, narrow, "k")
    more = add(2, wide, "k")
    assert taken() == more
    assert waiting() == behind


def test_claims_do_not_open_and_close_the_same_jobs_again_and_again():
    wide, narrow = tasks()
    add(1, wide, "k")
    taken()
    behind = add(2, narrow, "k")
    for _ in range(5):
        assert taken() == []
        assert waiting() == behind


def test_a_limit_of_0_pauses_its_task_and_no_other_with_the_same_key():
    one, other = tasks(1, 1)
    flow.set_limit("q", task=one, concurrency=0)
    paused, runs = add(1, one, "k"), add(1, other, "k")
    found = taken()
    for _ in range(3):
        look_again()
        sweep()
        found += taken()
    assert found == runs
    assert waiting() == paused


def test_a_job_that_was_opened_and_is_paused_leaves_its_slot_to_the_next_one():
    one, other = tasks(1, 1)
    first, second, third = *add(2, one, "k"), *add(1, other, "k")
    leases = take()
    assert list(leases) == [first]
    flow.pause("q", task=one, reason="test")
    # This opens the second one, which the next claim puts behind its pause.
    ack(leases[first])
    assert taken() + taken() == [third]
    assert waiting() == [second]


def test_a_job_that_was_opened_and_is_canceled_leaves_its_slot_to_the_next_one():
    one, _ = tasks(1, 1)
    first, second, third = add(3, one, "k")
    leases = take()
    ack(leases[first])
    assert cancel(second)
    assert taken() == [third]


def test_of_two_rates_of_a_key_the_slower_one_counts():
    common = {"queue_name": "q", "concurrency_key": jobs.by_argument}
    fast, slow = task(rate_limit="10/s", **common)(jobs.work), task(rate_limit="1/s", **common)(jobs.other)
    add(2, fast, "k")
    add(2, slow, "k")
    assert len(taken()) == 1


class TestAChangedLimit:
    """One job runs and jobs of both tasks wait; the gate names the second one."""

    @pytest.fixture
    def both(self):
        one, other = tasks(1, 1)
        register("w", supervisor_pid=1, boot_id="b", queues="q", concurrency=1, using="default")
        (first,) = add(1, other, "k")
        leases = take()
        ids = add(8, one, "k")
        assert taken() == []
        behind = add(1, other, "k")
        assert taken() == []
        assert Gate.objects.get().task == other.module_path
        return one, leases[first], ids, behind

    @finding("F10")
    def test_of_one_task_reaches_the_gate_of_a_key_that_another_task_shares(self, both):
        one, _, ids, _ = both
        flow.set_limit("q", task=one, concurrency=5)
        open_in_time()
        assert taken() == ids[:4]
        assert taken() == []

    @finding("F10")
    def test_that_is_taken_away_opens_all_of_its_jobs(self, both):
        one, _, ids, behind = both
        flow.set_limit("q", task=one, concurrency=None)
        open_in_time()
        assert taken() == ids
        assert waiting() == behind

    def test_reaches_it_by_the_sweep_where_more_wait_than_the_change_looks_at(self, both, monkeypatch):
        one, _, ids, _ = both
        monkeypatch.setattr(timing, "SHARED", 0)
        flow.set_limit("q", task=one, concurrency=5)
        open_in_time()
        assert taken() == []
        sweep()
        open_in_time()
        assert taken() == ids[:4]

    def test_of_the_other_task_is_not_undone_by_the_sweep(self, both):
        _, lease, ids, behind = both
        ack(lease)
        assert taken() == ids[:1]
        for _ in range(3):
            sweep()
            look_again()
            assert taken() == []
        assert waiting() == ids[1:] + behind


@finding("F10")
def test_a_rate_that_was_raised_reaches_the_gate_that_another_task_shares():
    common = {"queue_name": "q", "concurrency_key": jobs.by_argument, "rate_limit": "1/h"}
    one, other = task(**common)(jobs.work), task(**common)(jobs.other)
    add(1, one, "k")
    assert len(taken()) == 1
    ids = add(3, one, "k")
    taken()
    add(1, other, "k")
    taken()
    flow.set_limit("q", task=one, rate=None)
    open_in_time()
    assert taken() == ids
