"""task.enqueue_many(): one job for each call, all or none, with few statements."""

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import task
from jobqueue.base.compat import TaskResultStatus
from jobqueue.exceptions import InsideCoroutine, InvalidType, JobQueueError, PayloadError, WrongArguments
from jobqueue.models import Job, JobTag
from jobqueue.retention.deletion import delete_jobs
from jobqueue.transitions import ack, cancel
from tests.factories import claim_one

pytestmark = pytest.mark.django_db


def order_key(order_id, note=None):
    return None if order_id is None else f"order-{order_id}"


@task(queue_name="q", tags=("billing", "money"))
def charge(order_id, note=None):
    return order_id


@task(queue_name="q", dedupe_key=order_key)
def once_each(order_id, note=None):
    return order_id


@task(queue_name="q", ordering_key=order_key)
def in_order(order_id, note=None):
    return order_id


@task(queue_name="q", unique="waiting", on_conflict="replace", dedupe_key=order_key)
def newest(order_id, note=None):
    return order_id


def test_tuples_and_dicts_give_results_in_order():
    results = charge.enqueue_many([(1,), {"order_id": 2}, [3, "note"]])
    assert [(r.args, r.kwargs) for r in results] == [([1], {}), ([], {"order_id": 2}), ([3, "note"], {})]
    assert {r.status for r in results} == {TaskResultStatus.READY}
    for result in results:
        assert charge.get_result(result.id).args == result.args
        assert charge.get_result(result.id).enqueued_at == result.enqueued_at
    assert claim_one().payload == {"args": [1], "kwargs": {}}


def test_nothing_for_no_calls():
    assert charge.enqueue_many([]) == []
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ("ab", InvalidType),
        (7, InvalidType),
        ({"order_id": 1}, InvalidType),
        ([(1,), 2], InvalidType),
        ([(1,), "ab"], InvalidType),
        ([{1: 2}], InvalidType),
        ([(1,), (1, 2, 3)], WrongArguments),
        ([(1,), {"other": 1}], WrongArguments),
        ([(1,), (object(),)], PayloadError),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_written(calls, kind):
    with pytest.raises(kind, match="Nothing was written") as refused:
        charge.enqueue_many(calls)
    assert isinstance(refused.value, JobQueueError)
    assert not Job.objects.exists()


def test_statements_do_not_grow_with_the_jobs(read_once):
    charge.enqueue_many([(0,)])
    counts = []
    for number in (10, 100):
        with CaptureQueriesContext(connection) as captured:
            charge.enqueue_many([(n,) for n in range(number)])
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_keys_are_those_of_the_function_and_a_held_one_gives_its_job():
    held = once_each.enqueue(2)
    results = once_each.enqueue_many([(1,), (2,), (3,), (1,), (None,)])
    assert results[1].id == held.id
    assert results[3].id == results[0].id
    assert len({r.id for r in results}) == 4
    assert Job.objects.get(pk=results[4].id).dedupe_key is None


def test_a_held_key_gives_the_state_of_its_job():
    done = once_each.enqueue(2)
    ack(claim_one(), result="paid")
    found = once_each.enqueue_many([(1,), (2,)])[1]
    assert (found.id, found.status, found.return_value) == (done.id, TaskResultStatus.SUCCESSFUL, "paid")


def test_replacing_calls_change_the_waiting_job_and_the_last_one_counts():
    waiting = newest.enqueue(1, "old")
    results = newest.enqueue_many([(1, "a"), (2, "b"), (1, "c"), (2, "d")])
    assert [r.id for r in results] == [waiting.id, results[1].id, waiting.id, results[1].id]
    notes = {job.payload["args"][1] for job in Job.objects.all()}
    assert notes == {"c", "d"}


def test_jobs_of_an_ordering_key_wait_for_each_other():
    results = in_order.enqueue_many([(1,), (1,), (2,)])
    gates = [Job.objects.get(pk=r.id).gate for r in results]
    assert gates == [0, 1, 0]


def test_every_job_has_its_tags_and_is_found_by_them():
    results = charge.enqueue_many([(1,), (2,)])
    other = charge.using(tags=["billing"]).enqueue(3)
    once_each.enqueue(4)
    assert {job.pk for job in Job.objects.tagged("money")} == {int(r.id) for r in results}
    assert int(other.id) in {job.pk for job in Job.objects.tagged("billing").ready()}
    assert not Job.objects.tagged("Billing").exists()


def test_jobs_without_tags_write_none():
    once_each.enqueue(1)
    assert not JobTag.objects.exists()


def test_the_tags_of_a_deleted_job_go_with_it():
    job_id = int(charge.enqueue(1).id)
    cancel(job_id)
    ended = Job.objects.get(pk=job_id).finished_at
    assert delete_jobs({job_id: ended}, Job.Status.CANCELED, using="default") == [job_id]
    assert not JobTag.objects.exists()


def test_a_rollback_undoes_all_jobs_and_tags():
    with transaction.atomic():
        charge.enqueue_many([(1,), (2,)])
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    assert not JobTag.objects.exists()


def test_a_coroutine_awaits_the_other_method():
    async def sync():
        charge.enqueue_many([(1,)])

    async def awaited():
        return await charge.aenqueue_many([(1,), {"order_id": 2}])

    with pytest.raises(InsideCoroutine, match="aenqueue_many"):
        async_to_sync(sync)()
    assert len(async_to_sync(awaited)()) == 2
    assert Job.objects.count() == 2
