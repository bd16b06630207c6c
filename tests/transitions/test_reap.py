"""Leases that ran out: READY at once, or FAILED at max_attempts."""

import pytest

from jobqueue import enqueue_many
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import Reaped, ack, cancel, claim, reap
from tests.factories import claim_one, expire, job, make_job, make_jobs, row, set_columns, state, undone

pytestmark = pytest.mark.django_db


def test_nothing_lapsed_and_nothing_changes():
    make_job()
    held = claim_one()
    before = row(held.job_id)
    found = reap()
    assert (found.requeued, found.dead) == (0, 0)
    assert row(held.job_id) == before


def test_a_lapsed_job_is_ready_at_once_with_run_at_unchanged():
    job_id = make_job(priority=3)
    run_at = job(job_id).run_at
    expire(claim_one())
    found = reap(limit=10)
    assert isinstance(found, Reaped)
    assert (found.requeued, found.dead) == (1, 0)
    after = job(job_id)
    assert (after.status, after.attempts, after.fence, after.run_at) == (Job.Status.READY, 1, 1, run_at)
    assert (after.locked_by, after.lock_token, after.locked_at, after.lock_until) == (None,) * 4
    assert (after.cause, after.crashes) == ("lost", 1)
    assert after.finished_at is None
    lease = claim_one()
    assert (lease.attempt, lease.fence) == (2, 2)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_job_that_always_loses_its_worker_starts_exactly_max_attempts_times(most):
    job_id = make_job(max_attempts=most)
    starts = 0
    while leases := claim("q", worker="w"):
        starts += 1
        expire(*leases)
        found = reap()
        assert (found.requeued, found.dead) == ((0, 1) if starts == most else (1, 0))
    after = job(job_id)
    assert (starts, after.attempts, after.status) == (most, most, Job.Status.FAILED)
    assert after.finished_at is not None
    assert after.last_error


def test_reaping_leaves_a_row_of_history_with_the_worker():
    job_id = make_job()
    expire(claim_one(worker="gone:1"))
    reap()
    (attempt,) = JobAttempt.objects.filter(job_id=job_id)
    assert (attempt.attempt, attempt.fence, attempt.worker, attempt.cause) == (1, 1, "gone:1", "lost")
    assert "gone:1" in attempt.error


def test_limit_bounds_one_pass_and_the_oldest_go_first():
    make_jobs(5)
    leases = claim("q", 5, worker="w")
    for age, lease in enumerate(leases, start=1):
        set_columns(lease.job_id, lock_until=UtcNowPlus(-age))
    assert reap(limit=2).requeued == 2
    assert [state(lease.job_id) for lease in leases] == ["PROCESSING"] * 3 + ["READY"] * 2
    assert reap(limit=2).requeued == 2
    assert reap(limit=2).requeued == 1
    assert reap(limit=2).requeued == 0


def test_a_mixed_batch_is_told_apart():
    ids = [make_job(max_attempts=m) for m in (1, 5, 1, 5, 5)]
    leases = claim("q", 5, worker="w")
    assert cancel(ids[4])
    expire(*leases)
    found = reap()
    assert (found.requeued, found.dead) == (2, 2)
    assert [state(i) for i in ids] == ["FAILED", "READY", "FAILED", "READY", "CANCELED"]


def test_a_live_lease_beside_a_lapsed_one_is_left_alone():
    make_jobs(2)
    lapsed, live = claim("q", 2, worker="w")
    expire(lapsed)
    before = row(live.job_id)
    assert reap().requeued == 1
    assert row(live.job_id) == before
    ack(live)


def test_every_job_keeps_its_own_attempts_in_one_batch():
    ids = [make_job(attempts=a) for a in (0, 3, 7)]
    expire(*claim("q", 3, worker="w"))
    reap()
    assert [job(i).attempts for i in ids] == [1, 4, 8]


def test_a_batch_across_workers_blames_the_right_one():
    for name in ("a", "b"):
        job_id = make_job()
        (lease,) = claim("q", worker=name)
        assert lease.job_id == job_id
    expire(*Job.objects.values_list("pk", flat=True))
    reap()
    for attempt in JobAttempt.objects.all():
        assert f"worker {attempt.worker} " in attempt.error
    errors = {Job.objects.get(pk=a.job_id).last_error: a.worker for a in JobAttempt.objects.all()}
    assert all(f"worker {worker} " in text for text, worker in errors.items())
    assert len(errors) == 2


def test_1000_lapsed_leases_in_one_call():
    enqueue_many("q", range(1200))
    claim("q", 1200, worker="w")
    Job.objects.update(lock_until=UtcNowPlus(-1))
    assert [reap().requeued for _ in range(3)] == [1000, 200, 0]
    assert JobAttempt.objects.count() == 1200


def test_the_cost_of_a_reap_does_not_grow_with_the_batch(django_assert_max_num_queries):
    make_jobs(50)
    expire(*claim("q", 50, worker="w"))
    with django_assert_max_num_queries(8):
        assert reap().requeued == 50


def test_reap_inside_a_callers_transaction_is_undone_with_it():
    make_job()
    lease = claim_one()
    expire(lease)
    before = row(lease.job_id)
    with undone():
        reap()
    assert row(lease.job_id) == before
