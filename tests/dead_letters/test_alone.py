"""A job that is to run alone: recorded, begun by one process, and judged by its row, whatever becomes of that."""

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue.dead_letters import redrive, redrives, stop
from jobqueue.dead_letters.alone import begin_alone, is_requested, queues_alone, request_alone
from jobqueue.dead_letters.stepping import step
from jobqueue.exceptions import JobLost
from jobqueue.models import Job, Redrive
from jobqueue.models.job import ALONE_REASON
from jobqueue.transitions import ack, claim, discard, fail, fail_many, reap, retry
from jobqueue.transitions.releasing import hold_many
from tests.dead_letters.test_redrive import carry_out, dead, due_now
from tests.factories import expire, job, make_in_state, make_job, state
from tests.faults.test_lock_conflicts import in_thread
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db


def quarantined(max_attempts=1):
    job_id = make_job(max_attempts=max_attempts)
    for _ in range(max_attempts):
        assert fail_many(claim("q", worker="w"), error=JobLost("its process was killed"), delay_seconds=0) == []
    assert (state(job_id), job(job_id).wait_reason) == ("FAILED", "quarantined")
    return job_id


def begin(serves=lambda queue: True, worker="alone"):
    return begin_alone(serves, worker=worker, lease_seconds=60.0, using="default")


def looked():
    """The request after the next look at its job."""
    due_now()
    step(using="default")
    return redrives()[0]


def test_it_is_recorded_once_and_begun_by_one_process():
    job_id = quarantined()
    assert request_alone(job_id)
    assert request_alone(job_id)
    (run,) = redrives()
    assert (run.alone, run.state, run.redriven) == (True, "running", 0)
    assert run.filters == {"job_ids": [job_id], "queue": "q"}
    assert queues_alone(using="default") == {"q"}
    lease = begin()
    assert (lease.job_id, lease.attempt, lease.max_attempts, lease.worker) == (job_id, 2, 2, "alone")
    assert begin() is None
    assert queues_alone(using="default") == set()
    assert is_requested(job_id, using="default")
    ack(lease)
    found = looked()
    assert (found.state, found.redriven, found.reason) == ("done", 1, f"job {job_id} is DONE")
    assert not is_requested(job_id, using="default")


@pytest.mark.parametrize("name", ["READY", "PROCESSING", "DONE"])
def test_a_job_that_others_may_run_or_that_is_done_is_not_recorded(name):
    assert not request_alone(make_in_state(name))
    assert not request_alone(987654321)
    assert redrives() == []


def test_steps_of_redrives_leave_it_to_a_process_of_its_own():
    job_id, others = quarantined(), dead(2, queue="other")
    request_alone(job_id)
    redrive(queue="other")
    carry_out()
    assert [state(each) for each in [job_id, *others]] == ["FAILED", "READY", "READY"]
    assert queues_alone(using="default") == {"q"}


def test_a_worker_takes_jobs_of_its_queues_only():
    job_id = quarantined()
    request_alone(job_id)
    assert begin(serves=lambda queue: queue == "other") is None
    assert begin(serves=lambda queue: queue == "q").job_id == job_id


def test_while_it_runs_the_request_waits():
    request_alone(quarantined())
    assert begin() is not None
    assert looked().state == "running"


def test_a_job_that_kills_its_process_is_quarantined_again_and_the_request_says_so():
    job_id = quarantined(max_attempts=3)
    request_alone(job_id)
    fail_many([begin()], error=JobLost("its process was killed"))
    assert (state(job_id), job(job_id).wait_reason) == ("FAILED", "quarantined")
    found = looked()
    assert found.state == "stopped"
    assert found.reason == f"job {job_id} is FAILED after it ran alone; cause: lost, quarantined"


def test_when_the_whole_host_dies_the_reaper_quarantines_the_job():
    job_id = quarantined(max_attempts=3)
    request_alone(job_id)
    begin()
    expire(job_id)
    reap()
    assert (state(job_id), job(job_id).wait_reason) == ("FAILED", "quarantined")
    assert "quarantined" in looked().reason


def test_a_job_whose_worker_stops_is_held_and_begun_again_by_the_next_one():
    job_id = quarantined()
    request_alone(job_id)
    assert hold_many([begin()], ALONE_REASON) == []
    assert (state(job_id), job(job_id).gate, job(job_id).attempts) == ("READY", 2, 1)
    assert claim("q", worker="w") == []
    assert looked().redriven == 0
    lease = begin(worker="next")
    assert (lease.job_id, lease.attempt, lease.max_attempts) == (job_id, 2, 2)
    fail_many([lease], error=JobLost("its process was killed"))
    assert (state(job_id), job(job_id).wait_reason) == ("FAILED", "quarantined")


def test_a_held_job_keeps_its_attempts():
    job_id = make_job(gate=2, max_attempts=5)
    assert request_alone(job_id)
    lease = begin()
    assert (lease.attempt, lease.max_attempts) == (1, 5)
    fail(lease, error=ValueError("x"), delay_seconds=60)
    found = looked()
    assert found.state == "stopped"
    assert found.reason.startswith(f"job {job_id} is READY after it ran alone; ")


@pytest.mark.parametrize("change", [retry, discard])
def test_a_job_that_was_changed_before_it_begins_is_not_run(change):
    job_id = quarantined()
    request_alone(job_id)
    change(job_id)
    if change is discard:
        Job.objects.filter(pk=job_id).delete()
    assert begin() is None
    found = redrives()[0]
    assert (found.state, found.skipped) == ("stopped", 1)
    assert "was not run" in found.reason


def test_a_request_that_is_stopped_is_not_begun():
    job_id = quarantined()
    request_alone(job_id)
    assert stop(redrives()[0].id)
    assert begin() is None
    assert state(job_id) == "FAILED"


def test_a_job_that_was_deleted_meanwhile_ends_the_request():
    job_id = quarantined()
    request_alone(job_id)
    ack(begin())
    Job.objects.filter(pk=job_id).delete()
    assert looked().reason == f"job {job_id} was deleted"


def test_an_idle_look_is_one_statement():
    with CaptureQueriesContext(connection) as captured:
        assert queues_alone(using="default") == set()
    assert len(captured) == 1


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks no rows")
def test_another_process_does_not_wait_for_the_one_that_begins_it():
    request_alone(quarantined())
    with transaction.atomic():
        Redrive.objects.select_for_update().get()
        thread, found = in_thread(begin)
        thread.join()
        assert found in ([], [None])
    assert begin() is not None
