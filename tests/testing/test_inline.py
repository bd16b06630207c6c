"""run_inline() runs jobs when their transaction has ended, in the same thread."""

from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue import enqueue, enqueue_many
from jobqueue.models import Job
from jobqueue.testing import drain, run_inline
from tests.app import kit
from tests.factories import state, undone

pytestmark = pytest.mark.usefixtures("kind")


def test_a_job_runs_before_enqueue_returns(sold):
    with run_inline() as ran:
        result = kit.sells.enqueue("a")
        assert sold() == ["a"]
    assert (ran.ran, state(result.id)) == (1, "DONE")
    kit.sells.enqueue("b")
    assert sold() == ["a"], "after the block nothing runs"


def test_it_waits_for_the_end_of_the_outermost_transaction(sold):
    with run_inline():
        with transaction.atomic():
            with transaction.atomic():
                kit.sells.enqueue("a")
            assert sold() == []
        assert sold() == ["a"]


def enqueue_and_roll_back(number):
    with undone():
        kit.sells.enqueue(number)


def test_a_transaction_that_is_rolled_back_runs_nothing(sold):
    with run_inline() as ran:
        enqueue_and_roll_back("a")
        with transaction.atomic():
            enqueue_and_roll_back("b")
            kit.sells.enqueue("c")
    assert sold() == ["c"]
    assert ran.ran == 1


def test_a_block_without_a_savepoint_is_caught_up_with(sold):
    with run_inline():
        with transaction.atomic(savepoint=False):
            kit.sells.enqueue("a")
    assert sold() == ["a"]


def test_jobs_of_jobs_run_after_them(sold):
    with run_inline() as ran:
        kit.enqueues_when_committed.enqueue("x")
    assert sold() == ["x-parent", "x"]
    assert [run.name.rpartition(".")[2] for run in ran.runs] == ["enqueues_when_committed", "sells"]


def test_raw_rows_keyed_jobs_and_batches_run(sold):
    with run_inline():
        enqueue("parcels", {"number": "a"})
        enqueue_many("parcels", [{"number": "b"}, {"number": "c"}], dedupe_keys=["k", None])
        kit.sells.using(dedupe_key="once").enqueue("d")
        kit.sells.using(dedupe_key="once").enqueue("e")
    assert sold() == ["a", "b", "c", "d"]


def test_delayed_jobs_wait_for_a_drain(sold):
    with run_inline():
        kit.comes_later.enqueue(100)
    assert sold() == []
    assert drain(until=timedelta(seconds=200)).ran == 1


def test_the_code_under_test_sees_no_error_and_the_block_raises_it(sold):
    passed = []

    def work():
        with run_inline():
            kit.always_fails.enqueue()
            passed.append("went on")

    with pytest.raises(LookupError, match="never"):
        work()
    assert passed == ["went on"]
    assert Job.objects.get().attempts == 1


def test_an_error_of_the_test_itself_is_not_hidden():
    def work():
        with run_inline():
            kit.always_fails.enqueue()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_exactly_once_effects(sold):
    with run_inline():
        result = kit.finishes.enqueue("a")
        other = kit.finishes_in_a_transaction.enqueue("b")
    assert (sold(), state(result.id), state(other.id)) == (["a", "b"], "DONE", "DONE")
