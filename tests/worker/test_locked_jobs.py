"""A job that cannot get its lock, or whose task is not known here, goes back without using an attempt."""

import logging
import types
from collections import deque
from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue import task
from jobqueue.context.job_context import JobContext, JobScope
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import LockNotAcquired
from jobqueue.locks import lease_lock, mutex
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import claim
from jobqueue.worker.child import sifting
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.run.attempt import Ending
from tests.clocks import Clock
from tests.factories import claim_one, job, make_due, make_job, run_lease, seconds_from_now, set_columns
from tests.marks import committed, finding
from tests.races.actors import holding
from tests.settings import VENDOR

pytestmark = committed
PATH = f"{__name__}.report"


@task(queue_name="q", timeout_seconds=120)
def report(kind="lease"):
    if kind == "lease":
        with lease_lock("report", 60, timeout_seconds=0):
            return "made"
    with transaction.atomic():
        mutex("report", timeout_seconds=0)
    return "made"


def run_one():
    """Run the job of queue q as a worker does; how it ended."""
    outcome = run_lease(claim_one())
    assert not settle([outcome], types.SimpleNamespace(finished=0, failed=0, lost=0))
    return outcome.ending


def test_it_is_ready_again_after_some_seconds_with_its_attempts_and_the_reason(monkeypatch):
    monkeypatch.setattr("jobqueue.worker.child.outcomes.LOCKED_SECONDS", 500)
    job_id = int(report.enqueue().id)
    with lease_lock("report", 60):
        assert run_one() is Ending.PARKED
    found = job(job_id)
    assert (found.status, found.attempts, found.last_error) == (Job.Status.READY, 0, None)
    assert "'report' was not free" in found.wait_reason
    assert 140 < seconds_from_now(found.run_at) < 800
    assert not JobAttempt.objects.exists()
    make_due(job_id)
    assert run_one() is Ending.OK
    assert job(job_id).result == "made"


@pytest.mark.skipif(VENDOR == "sqlite", reason="the write lock of SQLite is held by the whole transaction")
def test_a_mutex_counts_as_well():
    job_id = int(report.enqueue("mutex").id)
    with holding(lambda: mutex("report")):
        assert run_one() is Ending.PARKED
    assert job(job_id).attempts == 0


@task(queue_name="q", max_attempts=2, timeout_seconds=30)
def nested():
    lock = lease_lock("report", 60, timeout_seconds=0)
    with lock, lock:
        return "made"


@finding("L20")
def test_a_job_that_meets_its_own_lock_fails_and_uses_its_attempts():
    job_id = int(nested.enqueue().id)
    assert run_one() is Ending.FAILED
    assert job(job_id).attempts == 1
    make_due(job_id)
    assert run_one() is Ending.FAILED
    assert job(job_id).status == Job.Status.FAILED


@finding("L20")
def test_a_job_that_does_not_get_its_lock_for_long_is_told_of_and_not_at_each_try(monkeypatch, caplog):
    clock = [1000.0]
    monkeypatch.setattr("jobqueue.worker.child.outcomes.time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    job_id = int(report.enqueue().id)
    with lease_lock("report", 3600), caplog.at_level(logging.WARNING, "jobqueue.worker"):
        for _ in range(13):
            assert run_one() is Ending.PARKED
            make_due(job_id)
            clock[0] += 100
    told = [record.getMessage() for record in caplog.records if "has not got its lock" in record.getMessage()]
    assert [text.split(": ")[0] for text in told] == [
        f"job {job_id} has not got its lock for 10m 0s",
        f"job {job_id} has not got its lock for 20m 0s",
    ]
    assert "jobs locks" in told[0]


@task(queue_name="q")
def wrapped():
    try:
        report.func()
    except LockNotAcquired as error:
        raise RuntimeError("no report") from error


def test_a_job_that_makes_another_error_of_it_fails_as_usual():
    job_id = int(wrapped.enqueue().id)
    with lease_lock("report", 60):
        assert run_one() is Ending.FAILED
    assert job(job_id).attempts == 1


@pytest.fixture
def context():
    """A running job of the task above, which may run for 120 s."""
    make_job(task=PATH)
    with JobScope(JobContext(claim_one())) as context:
        yield context


def test_a_lock_that_ends_before_its_job_must_is_told_once(context, caplog):
    caplog.set_level(logging.WARNING, "jobqueue.locks")
    for name in ("a", "b"):
        with lease_lock(name, 60):
            pass
    (line,) = caplog.messages
    assert "'a' ends 60 s after it is acquired" in line
    assert f"its job {PATH} may run for 120 s" in line


def test_a_lock_that_outlives_its_job_is_fine(context, caplog):
    with lease_lock("a", 120):
        pass
    assert not caplog.messages


def test_where_nobody_limits_the_time_nothing_is_said(caplog):
    make_job()
    with JobScope(JobContext(claim_one())), lease_lock("a", 1):
        pass
    with lease_lock("a", 1):
        pass
    assert not caplog.messages


def test_jobs_that_only_other_workers_know_stay_due_for_them_and_their_queue_is_left_alone_for_a_moment():
    ran = int(report.enqueue().id)
    others = [make_job("q", task="other.project.task"), make_job("q")]
    newer = make_job("q", task=PATH, payload={"args": [], "kwargs": {}, "version": 7})
    clock = Clock()
    unknown = sifting.UnknownTasks(clock=clock)
    leases = claim("q", 10, worker="w")
    known, left, _ = unknown.sift(leases)
    assert [lease.job_id for lease in known] == [ran]
    assert [lease.job_id for lease in left] == [*others, newer]
    # This process has work there.
    assert not unknown.leaves("q")
    assert unknown.sift(left) == ([], left, {})
    assert unknown.leaves("q")
    assert not unknown.leaves("another")
    clock.now += 2 * sifting.LOOK_SECONDS
    assert not unknown.leaves("q")


def test_a_job_that_no_worker_has_taken_for_seconds_is_put_back_so_that_those_behind_it_can_run():
    old = make_job("q", task="other.project.task")
    set_columns(old, run_at=UtcNowPlus(-2 * sifting.LEFT_SECONDS))
    leases = claim("q", 10, worker="w")
    assert sifting.UnknownTasks().sift(leases) == (leases, (), {})


def test_few_young_jobs_are_put_back_for_seconds_and_many_or_old_ones_for_a_minute(monkeypatch):
    monkeypatch.setattr(sifting, "_snoozed_at", deque())
    make_job("q", task="other.project.task")
    (lease,) = claim("q", 10, worker="w")
    seconds = [sifting.snooze_seconds(lease) for _ in range(2000)]
    assert (seconds[0] < 11, seconds == sorted(seconds), seconds[-1]) == (True, True, sifting.UNKNOWN_MAX_SECONDS)
    sifting._snoozed_at.clear()
    old = lease._replace(created_at=lease.created_at - timedelta(hours=1))
    assert sifting.snooze_seconds(old) == sifting.UNKNOWN_MAX_SECONDS
