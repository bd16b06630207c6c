"""A job that is to run alone: recorded, begun by one process, and judged by its row, whatever becomes of that."""

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import task
from jobqueue.dead_letters import redrive, redrives, stop
from jobqueue.exceptions import JobLost
from jobqueue.flow import breaker, pause, resume, set_limit
from jobqueue.models import Job, Redrive
from jobqueue.models.job import ALONE_REASON
from jobqueue.runs import alone
from jobqueue.runs.alone import begin_alone, is_requested, queues_alone, request_alone
from jobqueue.runs.redrive_steps import step
from jobqueue.transitions import ack, cancel, claim, discard, fail, fail_many, reap, retry
from jobqueue.transitions.alone import HeldBack, claim_alone
from jobqueue.transitions.releasing import hold_many
from tests.dead_letters.test_redrive import carry_out, dead, due_now
from tests.factories import expire, job, make_in_state, make_job, state
from tests.faults.test_lock_conflicts import in_thread
from tests.gates import jobs
from tests.marks import committed, finding
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


def test_many_that_wait_in_queues_of_others_keep_back_no_job_and_are_recorded_once(monkeypatch):
    monkeypatch.setattr(alone, "_PORTION", 2)
    alone._waiting.cache_clear()
    others = [quarantined() for _ in range(5)]
    (mine,) = dead(1, queue="mine")
    for job_id in (*others, mine, others[-1]):
        assert request_alone(job_id)
    assert len(redrives()) == 6
    assert queues_alone(using="default") == {"q", "mine"}
    assert begin(serves=lambda queue: queue == "mine").job_id == mine
    alone._waiting.cache_clear()


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


@finding("F4")
class TestAJobThatMayNotStartNow:
    @pytest.fixture
    def limited(self, own_registry):
        def make(**fields):
            return task(queue_name="q", **fields)(jobs.work)

        return make

    @pytest.fixture
    def dead_job(self):
        def end(work, *arguments):
            job_id = int(work.enqueue(*arguments).id)
            cancel(job_id)
            return job_id

        return end

    def waits(self, job_id, why):
        """Ask for it: nothing starts, and the request stays with the reason."""
        assert request_alone(job_id)
        assert begin() is None
        (run,) = redrives()
        assert (run.state, run.redriven) == ("running", 0)
        assert why in run.reason
        assert state(job_id) == "CANCELED"
        with pytest.raises(HeldBack, match=f"job {job_id} may not start now"):
            claim_alone(job_id, worker="terminal")
        assert state(job_id) == "CANCELED"

    def begins(self, job_id):
        due_now()
        lease = begin()
        assert lease.job_id == job_id
        return lease

    @pytest.mark.parametrize("key", [None, "a"])
    def test_waits_for_a_slot_and_has_it(self, limited, dead_job, key):
        fields = {"concurrency_key": jobs.by_argument} if key else {}
        work, arguments = limited(concurrency_limit=1, **fields), [key] if key else []
        job_id = dead_job(work, *arguments)
        work.enqueue(*arguments)
        (running,) = claim("q", worker="w")
        self.waits(job_id, "key a" if key else "slot")
        ack(running)
        lease = self.begins(job_id)
        work.enqueue(*arguments)
        assert claim("q", worker="w") == []
        ack(lease)
        assert len(claim("q", worker="w")) == 1

    def test_waits_for_a_place_in_its_queue(self, limited, dead_job):
        set_limit("q", concurrency=1)
        job_id = dead_job(limited())
        make_job()
        (running,) = claim("q", worker="w")
        self.waits(job_id, "limit of queue q")
        ack(running)
        self.begins(job_id)

    def test_waits_for_a_token(self, limited, dead_job):
        work = limited(rate_limit="1/h")
        job_id = dead_job(work)
        work.enqueue()
        assert len(claim("q", worker="w")) == 1
        self.waits(job_id, "rate")

    @pytest.mark.parametrize("whole_queue", [True, False])
    def test_waits_for_the_end_of_a_pause(self, limited, dead_job, whole_queue):
        work = limited()
        job_id = dead_job(work)
        pause("q", task=None if whole_queue else work, reason="r")
        self.waits(job_id, "paused")
        resume("q", task=None if whole_queue else work)
        self.begins(job_id)

    def test_waits_for_an_open_breaker(self, limited, dead_job):
        job_id = dead_job(limited(dependency="stripe"))
        breaker("stripe").open("down")
        self.waits(job_id, "breaker stripe")
        breaker("stripe").close()
        self.begins(job_id)

    def test_lets_others_that_were_asked_for_later_begin(self, limited, dead_job):
        pause("q", reason="r")
        first, other = dead_job(limited()), quarantined_in("other")
        assert request_alone(first)
        assert request_alone(other)
        assert begin().job_id == other


def quarantined_in(queue):
    job_id = make_job(queue=queue, max_attempts=1)
    assert fail_many(claim(queue, worker="w"), error=JobLost("its process was killed"), delay_seconds=0) == []
    return job_id
