"""cancel_many(), discard_many(), retry_many(): many jobs by a filter; run_again(): a copy of a job that has ended."""

from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue import enqueue, task
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.exceptions import InvalidType, InvalidValue, JobQueueError
from jobqueue.models import Job
from jobqueue.transitions import (
    ack,
    by_filter,
    cancel,
    cancel_many,
    discard,
    discard_many,
    fail,
    retry_many,
    run_again,
)
from jobqueue.transitions.by_filter import CHUNK
from tests.blocking import somebody_waits
from tests.factories import claim_one, lease_with, make_in_state, make_job, make_jobs, row, set_columns, state
from tests.faults.test_lock_conflicts import ended, in_thread
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db


@task(queue_name="q", tags=("billing",), max_attempts=3, retry_until_seconds=60)
def charge(order_id):
    return order_id


def die(queue="q"):
    lease = claim_one(queue)
    fail(lease_with(lease, max_attempts=1), error="x")
    return lease.job_id


def test_cancel_many_cancels_the_jobs_of_a_queue_and_asks_running_ones():
    waiting, other = make_job("q"), make_job("other")
    running = enqueue("q", 1, priority=9)
    lease = claim_one()
    assert lease.job_id == running
    assert cancel_many(queue="q") == 2
    assert (state(waiting), state(other), state(running)) == ("CANCELED", "READY", "PROCESSING")
    assert row(running)["cancel_requested_at"] is not None


def test_more_jobs_than_one_transaction_takes():
    ids = make_jobs(CHUNK + 3)
    assert cancel_many(queue="q") == CHUNK + 3
    assert {state(job_id) for job_id in ids} == {"CANCELED"}
    assert retry_many(queue="q", limit=CHUNK + 1) == CHUNK + 1
    assert [state(job_id) for job_id in ids[-2:]] == ["CANCELED"] * 2


def test_filters_hold_together():
    tagged = int(charge.enqueue(1).id)
    old = int(charge.enqueue(2).id)
    make_job("q")
    set_columns(old, created_at=UtcNowPlus(-3600))
    before = read_now("default") - timedelta(minutes=1)
    assert cancel_many(tag="billing", created_before=before) == 1
    assert state(old) == "CANCELED"
    assert cancel_many(task=charge.module_path, job_ids=[str(tagged)]) == 1


@pytest.mark.parametrize(
    "name",
    [pytest.param("ready", marks=finding("M-F8")), pytest.param("READY", marks=finding("M-F8")), Job.Status.READY],
)
def test_a_state_is_given_by_its_name_as_to_commands(name):
    waiting, runs = make_job("q"), enqueue("q", 1, priority=9)
    claim_one()
    assert cancel_many(status=name) == 1
    assert (state(waiting), row(runs)["cancel_requested_at"]) == ("CANCELED", None)


def test_discard_many_takes_dead_letters():
    make_jobs(2)
    dead = [die(), die()]
    alive = make_job("q")
    assert discard_many(queue="q", status=Job.Status.FAILED) == 2
    assert [state(job_id) for job_id in [*dead, alive]] == ["CANCELED", "CANCELED", "READY"]


def test_retry_many_leaves_jobs_alone_whose_key_another_has():
    first = enqueue("q", 1, dedupe_key="k")
    cancel(first)
    set_columns(first, finished_at=UtcNowPlus(-90_000))
    enqueue("q", 2, dedupe_key="k")
    make_job("q")
    other = enqueue("q", 3)
    cancel(other)
    assert retry_many(everything=True) == 1
    assert (state(first), state(other)) == ("CANCELED", "READY")


def test_a_rollback_of_the_caller_undoes_it():
    job_id = make_job()
    with transaction.atomic():
        assert cancel_many(queue="q") == 1
        transaction.set_rollback(True)
    assert state(job_id) == "READY"


@pytest.mark.parametrize(
    ("filters", "kind"),
    [
        ({}, InvalidValue),
        ({"queue": None}, InvalidValue),
        ({"queue": "q", "everything": True}, InvalidValue),
        ({"everything": 1}, InvalidType),
        ({"queue": 7}, InvalidType),
        ({"tag": ""}, InvalidValue),
        ({"status": Job.Status.DONE}, InvalidValue),
        ({"status": "done"}, InvalidValue),
        ({"status": "waiting"}, InvalidValue),
        ({"job_ids": "12"}, InvalidType),
        ({"queue": "q", "limit": 0}, InvalidValue),
        ({"queues": "q"}, InvalidType),
    ],
)
@pytest.mark.parametrize("verb", [cancel_many, discard_many, retry_many])
def test_wrong_filters_are_refused(verb, filters, kind):
    job_id = make_job()
    with pytest.raises(kind, match="Nothing was written") as refused:
        verb(**filters)
    assert isinstance(refused.value, JobQueueError)
    assert state(job_id) == "READY"


def test_a_finished_job_runs_again_as_a_copy():
    result = charge.using(priority=4, dedupe_key="k", concurrency_key=None).enqueue(7)
    ack(claim_one(), result=7)
    before = row(int(result.id))
    copy = Job.objects.get(pk=run_again(result.id))
    assert row(int(result.id)) == before
    assert (copy.status, copy.payload, copy.task) == (0, {"args": [7], "kwargs": {}}, charge.module_path)
    assert (copy.priority, copy.max_attempts, copy.attempts, copy.dedupe_key) == (4, 3, 0, None)
    assert copy in Job.objects.tagged("billing")
    assert claim_one().payload["args"] == [7]


def test_a_failed_job_that_was_retried_runs_again_with_all_its_attempts():
    job_id = int(charge.enqueue(1).id)
    die()
    assert retry_many(job_ids=[job_id]) == 1
    die()
    assert row(run_again(job_id))["max_attempts"] == 3


@pytest.mark.parametrize("claimed", [False, True])
def test_a_job_that_has_not_ended_is_not_run_again(claimed):
    job_id = make_job()
    if claimed:
        claim_one()
    with pytest.raises(InvalidValue, match="has not ended"):
        run_again(job_id)
    with pytest.raises(InvalidValue, match="there is no job"):
        run_again(job_id + 1)
    assert Job.objects.count() == 1


@finding("F6")
@pytest.mark.parametrize(
    ("verb", "filters", "before", "meanwhile"),
    [
        ("cancel", {"status": Job.Status.READY}, "READY", lambda job_id: claim_one()),
        ("cancel", {"queue": "q"}, "READY", lambda job_id: set_columns(job_id, queue="other")),
        ("discard", {"status": Job.Status.READY}, "READY", lambda job_id: die()),
        ("retry", {"status": Job.Status.FAILED}, "FAILED", discard),
        ("retry", {"queue": "q", "limit": 1}, "FAILED", lambda job_id: set_columns(job_id, queue="other")),
    ],
)
def test_a_job_that_matches_no_more_when_it_is_locked_is_left_as_it_is(monkeypatch, verb, filters, before, meanwhile):
    job_id = make_in_state(before)
    change, rows = getattr(by_filter, f"{verb}_each"), []

    def others_first(*args, **kwargs):
        meanwhile(job_id)
        rows.append(row(job_id))
        return change(*args, **kwargs)

    monkeypatch.setattr(by_filter, f"{verb}_each", others_first)
    assert getattr(by_filter, f"{verb}_many")(**filters) == 0
    assert row(job_id) == rows[0]


@finding("F6")
@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer at a time")
def test_the_row_is_judged_as_it_is_after_the_wait_for_its_lock():
    moved, waiting = make_job("q"), make_job("q", priority=-1)
    with transaction.atomic():
        list(Job.objects.select_for_update().filter(pk=moved))
        thread, found = in_thread(lambda: cancel_many(queue="q"))
        wait_until(somebody_waits, what="the wait for the row")
        set_columns(moved, queue="other")
    ended(thread)
    assert found == [1]
    assert (state(moved), state(waiting)) == ("READY", "CANCELED")
