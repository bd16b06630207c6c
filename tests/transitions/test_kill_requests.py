"""cancel(kill_after_seconds=...): what it writes, for which run it counts, and how a killed job ends."""

import math
import time
from datetime import timedelta
from decimal import Decimal

import pytest

from jobqueue import enqueue
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import ack, cancel, claim, fail, reap, release_many, retry, run_again
from jobqueue.transitions.killing import end_killed, jobs_beside, kill_at
from jobqueue.worker.monitor.stopping import Overtime, flag
from jobqueue.worker.shared.scoreboard import CANCEL, Hold, LeaseSlot, Scoreboard
from tests.app import tasks
from tests.factories import claim_one, expire, job, make_in_state, make_job, now, row, set_columns, state

pytestmark = pytest.mark.django_db


def asked_at(job_id):
    found = job(job_id)
    return kill_at(found.options, found.fence)


def in_hand(lease):
    slot = LeaseSlot()
    slot.fill(lease.job_id, lease.fence, lease.token, lease_seconds=60, lease_until=0)
    slot.hold = Hold.RUNNING
    return {(lease.job_id, lease.fence): slot}


def kills(held):
    """When the monitor would kill which of these jobs."""
    watch = Overtime(Scoreboard(1, 1))
    watch.note(0, flag(held, "default"), "default")
    return {key: until for key, until in watch._kills.get(0, {}).items() if until < math.inf}


@pytest.mark.parametrize("given", [-1, -0.001, math.nan, math.inf, 10**9])
def test_a_time_that_is_none_is_refused(given):
    job_id = make_in_state("PROCESSING")
    before = row(job_id)
    with pytest.raises(InvalidValue, match=r"kill_after_seconds is .* Nothing was written"):
        cancel(job_id, kill_after_seconds=given)
    assert row(job_id) == before


@pytest.mark.parametrize("given", [True, "10", Decimal(1), timedelta(seconds=1)])
def test_what_is_no_number_of_seconds_is_refused(given):
    job_id = make_in_state("READY")
    with pytest.raises(InvalidType, match="kill_after_seconds must be a number of seconds"):
        cancel(job_id, kill_after_seconds=given)
    assert state(job_id) == "READY"


@pytest.mark.parametrize("name", ["READY", "DONE", "FAILED", "CANCELED"])
def test_a_job_that_does_not_run_is_treated_as_without_it(name):
    job_id = make_in_state(name)
    before = row(job_id)
    assert cancel(job_id, kill_after_seconds=1) is (name == "READY")
    assert state(job_id) == "CANCELED" if name == "READY" else row(job_id) == before
    assert job(job_id).options is None


def test_the_request_is_kept_by_the_clock_of_the_database_beside_the_other_options():
    job_id = make_job(options={"own": 1})
    claim_one()
    begun = now()
    assert cancel(job_id, kill_after_seconds=0.5)
    assert begun + timedelta(seconds=0.4) < asked_at(job_id) <= now() + timedelta(seconds=0.5)
    assert job(job_id).options["own"] == 1
    assert job(job_id).cancel_requested_at is not None


def test_the_earliest_of_several_requests_counts():
    job_id = make_in_state("PROCESSING")
    assert cancel(job_id)
    assert asked_at(job_id) is None
    cancel(job_id, kill_after_seconds=100)
    first = asked_at(job_id)
    for later in (None, 200):
        cancel(job_id, kill_after_seconds=later)
        assert asked_at(job_id) == first
    cancel(job_id, kill_after_seconds=10)
    assert asked_at(job_id) < first


def test_it_does_not_count_for_the_next_run():
    job_id = make_in_state("PROCESSING")
    cancel(job_id, kill_after_seconds=0)
    expire(job_id)
    assert reap().canceled == 1
    assert retry(job_id)
    lease = claim_one()
    assert asked_at(job_id) is None
    assert kills(in_hand(lease)) == {}
    # Nor if that run is asked to stop only.
    cancel(job_id)
    assert kills(in_hand(lease)) == {}


def test_a_copy_of_the_job_does_not_have_it():
    job_id = make_in_state("PROCESSING")
    cancel(job_id, kill_after_seconds=0)
    expire(job_id)
    reap()
    assert job(run_again(job_id)).options is None


@pytest.mark.parametrize("kill", [7, [], {}, None, [1], [1, "soon"], [1, "2026-01-01"], [1, 5], [1, None, 2]])
def test_what_plain_sql_has_written_kills_nobody(kill):
    job_id = make_job()
    lease = claim_one()
    set_columns(job_id, options={"kill": kill}, cancel_requested_at=UtcNowPlus(0))
    assert kills(in_hand(lease)) == {}


def test_the_monitor_learns_when_to_kill_and_flags_the_job():
    job_id = make_job()
    lease = claim_one()
    held = in_hand(lease)
    assert kills(held) == {}
    cancel(job_id, kill_after_seconds=100)
    before = time.monotonic()
    ((key, until),) = kills(held).items()
    assert before + 90 < until <= time.monotonic() + 100
    assert key == (job_id, lease.fence)
    assert held[key].flags == CANCEL
    # DONE by finish(): only the end of its body is missing.
    ack(lease)
    assert kills(held) == {}


def test_a_request_is_read_once_and_what_is_only_asked_needs_no_clock(django_assert_num_queries):
    job_id = make_job()
    lease = claim_one()
    held, watch = in_hand(lease), Overtime(Scoreboard(1, 1))

    def looks(statements):
        with django_assert_num_queries(statements):
            watch.note(0, flag(held, "default"), "default")

    looks(1)
    cancel(job_id)
    looks(2)
    looks(1)
    cancel(job_id, kill_after_seconds=9)
    looks(3)
    first = watch._kills[0][job_id, lease.fence]
    looks(1)
    cancel(job_id, kill_after_seconds=5)
    looks(3)
    assert watch._kills[0][job_id, lease.fence] < first
    ack(lease)
    looks(1)
    assert (watch._kills, watch._read) == ({}, {})


def test_a_killed_job_is_canceled_uncharged_and_its_stack_is_kept():
    result = tasks.add.using(queue_name="q").enqueue(1, 2)
    lease = claim_one()
    cancel(lease.job_id, kill_after_seconds=0)
    assert end_killed(lease, ["app/tasks.py:1 outer", "app/tasks.py:9 inner"])
    found = job(lease.job_id)
    assert (state(found.pk), found.attempts, found.crashes, found.last_error, found.cause) == (
        "CANCELED", 0, 0, None, None,
    )  # fmt: skip
    kept = JobAttempt.objects.get()
    assert (kept.attempt, kept.fence, kept.cause, kept.fingerprint) == (1, lease.fence, "canceled", None)
    lines = kept.error.splitlines()
    assert lines[1:3] == ["  app/tasks.py:1 outer", "  app/tasks.py:9 inner"]
    assert lines[-1].startswith("jobqueue.exceptions.JobCanceled: it did not stop in time")
    result.refresh()
    (error,) = result.errors
    assert error.exception_class_path == "jobqueue.exceptions.JobCanceled"
    # Its next life counts from the beginning.
    assert retry(found.pk)
    assert fail(claim_one(), error="no") == Job.Status.READY
    assert job(found.pk).attempts == 1


def test_a_job_that_has_ended_at_the_last_moment_stays_as_it_is():
    lease = claim_one() if make_job() else None
    cancel(lease.job_id, kill_after_seconds=0)
    ack(lease, result=1)
    before = row(lease.job_id)
    assert not end_killed(lease, [])
    assert row(lease.job_id) == before
    assert not JobAttempt.objects.exists()


def test_a_job_that_nobody_asked_to_cancel_is_not_ended():
    make_job()
    lease = claim_one()
    assert not end_killed(lease, [])
    assert (state(lease.job_id), JobAttempt.objects.count()) == ("PROCESSING", 0)
    assert release_many([lease]) == []
    assert state(lease.job_id) == "READY"


def test_the_jobs_beside_are_those_that_the_same_process_holds():
    raw = enqueue("q", {})
    tasks.add.using(queue_name="q").enqueue(1, 2)
    mine, raw_lease = sorted(claim("q", 2, worker="host:1.1"), key=lambda lease: lease.task is None)
    make_job("other")
    claim_one("other", worker="host:1.2")
    (found,) = jobs_beside([mine.job_id])
    assert (found.id, found.task, found.queue) == (raw, None, "q")
    (found,) = jobs_beside([str(raw_lease.job_id)])
    assert (found.id, found.task) == (mine.job_id, mine.task)
    assert jobs_beside([mine.job_id, raw]) == []
    assert jobs_beside([make_in_state("READY"), 10**9]) == []
    ack(mine)
    assert jobs_beside([mine.job_id]) == []
