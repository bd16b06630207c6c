"""Which jobs a claim takes, in which order, and what it writes."""

from contextlib import suppress
from datetime import UTC, timedelta

import pytest
from django.db import Error, connection, transaction

from jobqueue import enqueue, enqueue_many
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InsideTransaction, JobQueueError
from jobqueue.gates import rules
from jobqueue.models import Job
from jobqueue.transitions import ack, claim, fail, reap, release, snooze
from tests.factories import (
    claim_one,
    expire,
    job,
    make_due,
    make_job,
    make_jobs,
    row,
    seconds_from_now,
    set_columns,
    state,
)
from tests.marks import committed

pytestmark = pytest.mark.django_db


def claimed_ids(limit, queue="q"):
    return [lease.job_id for lease in claim(queue, limit, worker="w")]


def test_an_empty_queue_gives_nothing():
    assert claim("q", 10, worker="w") == []


def test_larger_priority_first_then_run_at_then_id():
    low, high, late, early, twin = (make_job(priority=p) for p in (0, 9, 5, 5, 5))
    negative = make_job(priority=-3)
    set_columns(late, run_at=UtcNowPlus(-10))
    moment = job(early).run_at - timedelta(seconds=60)
    for job_id in (early, twin):
        set_columns(job_id, run_at=moment)
    assert claimed_ids(10) == [high, early, twin, late, low, negative]


def test_limit_leaves_the_rest_ready():
    ids = make_jobs(5)
    assert claimed_ids(3) == ids[:3]
    assert claimed_ids(3) == ids[3:]
    assert claimed_ids(3) == []


def test_a_limit_reaches_over_several_levels():
    ids = [make_job(priority=p) for p in (3, 3, 2, 1, 1)]
    assert claimed_ids(4) == ids[:4]


def test_by_default_one_job_is_taken():
    make_jobs(2)
    assert len(claim("q", worker="w")) == 1


def test_delayed_jobs_wait_whatever_their_priority():
    set_columns(make_job(priority=100), run_at=UtcNowPlus(3600))
    due = make_job()
    assert claimed_ids(10) == [due]


def test_a_delayed_job_is_taken_when_it_is_due():
    delayed = make_job()
    set_columns(delayed, run_at=UtcNowPlus(3600))
    assert claimed_ids(1) == []
    make_due(delayed)
    assert claimed_ids(1) == [delayed]


@pytest.mark.parametrize("gate", [1, 2, -1, 127])
def test_a_gated_job_waits(gate):
    make_job(gate=gate, priority=5)
    free = make_job()
    assert claimed_ids(10) == [free]


@pytest.mark.parametrize("status", [1, 2, 3, 4])
def test_only_ready_jobs_are_taken(status):
    held = {"locked_by": "x", "lock_token": b"t" * 16, "locked_at": UtcNowPlus(0), "lock_until": UtcNowPlus(60)}
    make_job(status=status, **(held if status == 1 else {}))
    assert claimed_ids(10) == []


@pytest.mark.parametrize(("asked", "other"), [("q", "Q"), ("q", "q "), ("é", "e"), ("q", "qq")])
def test_only_the_queue_asked_for_byte_for_byte(asked, other):
    make_job(other)
    assert claimed_ids(10, asked) == []
    mine = make_job(asked)
    assert claimed_ids(10, asked) == [mine]


def test_the_lease_tells_what_the_row_says():
    job_id = make_job(payload={"a": [1]}, attempts=2, fence=7)
    (lease,) = claim("q", worker="host:1", lease_seconds=600)
    made = job(job_id)
    assert (lease.job_id, lease.payload, lease.attempt, lease.fence) == (job_id, {"a": [1]}, 3, 8)
    assert (made.status, made.locked_by, made.fence, made.attempts) == (Job.Status.PROCESSING, "host:1", 8, 2)
    assert bytes(made.lock_token) == lease.token
    assert isinstance(lease.token, bytes)
    assert len(lease.token) == 16
    assert made.lock_until == lease.lock_until
    assert lease.lock_until.tzinfo is UTC or lease.lock_until.utcoffset() == timedelta(0)
    assert 540 < seconds_from_now(lease.lock_until) <= 600
    assert made.locked_at == lease.lock_until - timedelta(seconds=600)
    assert made.finished_at is None


@pytest.mark.parametrize("seconds", [0.25, 1, 3600, 86400])
def test_the_lease_lasts_as_long_as_asked(seconds):
    make_job()
    (lease,) = claim("q", worker="w", lease_seconds=seconds)
    assert job(lease.job_id).lock_until - job(lease.job_id).locked_at == timedelta(seconds=seconds)


@pytest.mark.parametrize(("own", "granted"), [(600, 600), (5, 60), (None, 60)])
def test_a_jobs_own_longer_lease_wins(own, granted):
    make_job(lease_seconds=own)
    plain = make_job()
    first, second = claim("q", 2, worker="w", lease_seconds=60)
    assert first.lock_until - job(first.job_id).locked_at == timedelta(seconds=granted)
    assert job(plain).lock_until == second.lock_until


def test_two_claims_never_have_the_same_token():
    make_jobs(2)
    assert claim_one().token != claim_one().token


def test_fence_grows_with_every_claim_and_never_otherwise():
    job_id = make_job()
    seen = []
    for end in (
        release,
        lambda lease: snooze(lease, delay_seconds=0),
        lambda lease: fail(lease, error="x", delay_seconds=0),
        ack,
    ):
        lease = claim_one()
        seen.append(lease.fence)
        end(lease)
        assert job(job_id).fence == lease.fence
    assert seen == [1, 2, 3, 4]


def test_a_claim_clears_the_reason_for_waiting():
    make_job(wait_reason="parked")
    claim_one()
    assert job(Job.objects.get().pk).wait_reason is None


def test_claim_refuses_an_open_transaction_and_takes_nothing():
    job_id = make_job()
    before = row(job_id)
    with transaction.atomic(), pytest.raises(InsideTransaction) as caught:
        claim("q", worker="w")
    assert isinstance(caught.value, JobQueueError)
    assert row(job_id) == before


@committed
def test_claim_is_committed_when_it_returns():
    make_job()
    lease = claim_one()
    connection.close()
    assert state(lease.job_id) == "PROCESSING"


def test_an_idle_claim_is_one_statement(django_assert_num_queries, monkeypatch):
    """Besides the pauses and limits, which a process reads at most twice a second."""
    monkeypatch.setattr(rules, "RULES_SECONDS", 600.0)
    claim("q", worker="w")
    with django_assert_num_queries(1):
        claim("q", worker="w")


def test_the_queue_goes_on_after_a_reap():
    job_id = make_job()
    expire(claim_one())
    assert claimed_ids(1) == []
    assert reap().requeued == 1
    assert claimed_ids(1) == [job_id]


@pytest.mark.parametrize(
    "stored", ["[" * 990 + "]" * 990, "1e999", '"\\ud800"', "123456789012345678901234567890", "9" * 5000]
)
def test_one_unreadable_row_does_not_stop_the_batch(stored, sql):
    strange, good = make_job(), make_job()
    # A database may refuse such text itself; that is as good.
    with suppress(Error), transaction.atomic():
        sql("UPDATE job_queue SET payload = %s WHERE id = %s", [stored, strange])
    assert good in claimed_ids(10)


def test_1000_jobs_in_one_claim():
    ids = enqueue_many("q", range(1000))
    assert claimed_ids(1000) == ids


def test_an_enqueued_job_is_claimable_at_once():
    for _ in range(20):
        job_id = enqueue("q", 1)
        assert claimed_ids(1) == [job_id]
