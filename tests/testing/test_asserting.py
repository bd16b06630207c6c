"""assert_enqueued() finds what was enqueued, and tells what was there instead."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from jobqueue import enqueue
from jobqueue.exceptions import InvalidType
from jobqueue.models import Job
from jobqueue.testing import assert_enqueued, drain, refute_enqueued
from tests.app import kit

pytestmark = pytest.mark.django_db


def test_a_task_is_found_by_everything_it_was_enqueued_with():
    later = timezone.now() + timedelta(hours=1)
    kit.sells_slowly.using(run_after=later, dedupe_key="k").enqueue("a", buyer="Ada")
    [job] = assert_enqueued(kit.sells_slowly)
    assert job.queue == "slow"
    assert_enqueued("slow", count=1)
    assert_enqueued()
    assert_enqueued(kit.sells_slowly, args=("a",), kwargs={"buyer": "Ada"}, queue="slow", priority=3, count=1)
    assert_enqueued(kit.sells_slowly, run_at=later, dedupe_key="k", status=Job.Status.READY)


def test_raw_rows_are_found_by_their_payload():
    enqueue("parcels", {"n": (1, 2)})
    assert_enqueued("parcels", payload={"n": [1, 2]})
    refute_enqueued("parcels", payload={"n": [1]})
    refute_enqueued("parcels", payload=None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"args": ["b"]},
        {"args": ["a"], "kwargs": {"buyer": "Bob"}},
        {"kwargs": {}},
        {"queue": "fast"},
        {"count": 2},
        {"priority": 0},
        {"run_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"dedupe_key": "k"},
        {"status": Job.Status.DONE},
    ],
    ids=str,
)
def test_what_differs_in_one_thing_is_not_found(arguments):
    kit.sells_slowly.enqueue("a", buyer="Ada")
    with pytest.raises(AssertionError, match=r"expected with tests\.app\.kit\.sells_slowly"):
        assert_enqueued(kit.sells_slowly, **arguments)


def test_the_message_lists_what_is_there():
    kit.sells_slowly.using(dedupe_key="k").enqueue("a", buyer="Ada")
    enqueue("parcels", {"n": 1})
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(kit.sells, args=["a"])
    lines = str(caught.value).splitlines()
    assert lines[0] == 'at least one job expected with tests.app.kit.sells, args=["a"]; found 0.'
    assert lines[1] == "In the table (2):"
    assert (
        'tests.app.kit.sells_slowly args=["a"] kwargs={"buyer": "Ada"} queue=slow priority=3 dedupe_key=b' in lines[2]
    )
    assert lines[2].endswith("READY")
    assert 'raw row payload={"n": 1} queue=parcels' in lines[3]


def test_an_empty_table_is_told_and_a_long_one_cut():
    with pytest.raises(AssertionError, match="The table of jobs is empty"):
        assert_enqueued(kit.sells)
    for n in range(25):
        kit.sells.enqueue(str(n))
    with pytest.raises(AssertionError, match="and 5 more"):
        refute_enqueued(kit.sells)


def test_a_job_that_ran_was_enqueued_all_the_same():
    refute_enqueued(kit.sells)
    kit.sells.enqueue("a")
    drain()
    assert_enqueued(kit.sells, status=Job.Status.DONE)
    with pytest.raises(AssertionError):
        refute_enqueued(kit.sells)
    refute_enqueued(kit.sells, status=Job.Status.READY)


def test_something_else_than_a_task_is_refused():
    with pytest.raises(InvalidType, match="a task or the name of a queue"):
        assert_enqueued(print)
