"""explain_queue(): why the jobs of a queue do not start."""

from datetime import timedelta

import pytest

from jobqueue import enqueue, task
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.explain import explain_queue
from jobqueue.explain.rows import LEVELS_MAX
from jobqueue.flow import breaker, drain, pause, set_limit
from jobqueue.transitions import reap
from tests.explain.helpers import codes, first, named, of_queue
from tests.factories import claim_one, expire, make_in_state, make_job, make_jobs, now, set_columns, settle_run
from tests.gates import jobs
from tests.gates.helpers import add, taken

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.mark.parametrize("wrong", ["", "a,b", "-a", "x" * 65, "a\x00b"])
def test_what_is_no_name_of_a_queue_is_refused(wrong):
    with pytest.raises(InvalidValue):
        explain_queue(wrong)


def test_another_type_is_refused():
    with pytest.raises(InvalidType):
        explain_queue(None)


class TestAQueueWithoutWaitingJobs:
    def test_says_that_there_are_none(self):
        make_job("other")
        one = first(of_queue(), "ended")
        assert one.evidence == {"queue": "q", "ready": 0, "running": 0}
        make_in_state("DONE")
        make_in_state("FAILED")
        assert codes(of_queue())[0] == "ended"

    def test_says_that_it_is_paused_first(self):
        pause("q", reason="r")
        assert first(of_queue(), "paused").evidence["reason"] == "r"
        assert codes(of_queue()) == ["paused", "ended"]

    def test_says_that_its_jobs_run(self, worker):
        worker("w")
        make_job()
        lease = claim_one()
        (one,) = of_queue()
        assert first([one], "running").evidence == {"queue": "q", "running": 1, "jobs": [lease.job_id]}


class TestAQueueWithDueJobs:
    def test_without_a_worker_says_so(self):
        make_job()
        assert codes(of_queue()) == ["no_worker"]

    def test_with_a_worker_says_that_nothing_holds_them_back(self, worker):
        worker()
        make_job()
        assert "Nothing holds back" in first(of_queue(), "workers_busy").text

    def test_that_is_paused_says_so_first(self):
        make_job()
        pause("q", reason="r", by="ann")
        found = of_queue()
        assert first(found, "paused").evidence["by"] == "ann"
        assert "no_worker" in codes(found)

    def test_that_is_paused_does_not_say_that_a_worker_starts_them(self, worker):
        worker()
        make_job()
        pause("q", reason="r")
        assert codes(of_queue()) == ["paused"]

    def test_with_a_limit_of_0_does_not_say_that_a_worker_starts_them(self, worker):
        worker()
        make_job()
        set_limit("q", concurrency=0)
        assert codes(of_queue()) == ["paused"]

    def test_that_is_draining_says_so_first(self, worker):
        worker()
        make_job()
        drain("q", reason="r")
        assert codes(of_queue()) == ["draining", "workers_busy"]

    def test_says_that_the_limit_of_the_queue_is_reached(self, worker):
        worker("w")
        make_jobs(3)
        set_limit("q", concurrency=2)
        taken()
        assert first(of_queue(), "slot").evidence["limit"] == 2
        set_limit("q", concurrency=None, rate="1/m")
        assert "rate" not in codes(of_queue()), "the bucket is full"
        taken()

    def test_says_that_the_bucket_of_the_queue_is_empty(self):
        make_jobs(2)
        set_limit("q", rate="1/m")
        taken()
        assert first(of_queue(), "rate").evidence["task"] is None

    def test_finds_them_below_priorities_of_which_no_job_is_due(self, worker):
        worker()
        for priority in (9, 7):
            enqueue("q", 1, priority=priority, run_at=now() + HOUR)
        make_job()
        assert codes(of_queue()) == ["workers_busy"]


class TestAQueueWhoseJobsAreNotDue:
    def test_names_the_one_that_is_due_first(self, worker):
        worker()
        enqueue("q", 1, run_at=now() + 2 * HOUR, priority=5)
        soon = enqueue("q", 1, run_at=now() + HOUR)
        enqueue("q", 1, run_at=now() + 3 * HOUR)
        (one,) = of_queue()
        assert first([one], "not_due").evidence["job_id"] == soon
        assert "No job of queue q is due" in one.text

    def test_says_how_far_it_has_looked(self, worker):
        worker()
        for priority in range(LEVELS_MAX + 2):
            enqueue("q", 1, run_at=now() + HOUR, priority=priority)
        assert "lower ones were not looked at" in first(of_queue(), "not_due").text

    def test_says_that_workers_do_not_know_the_task(self, worker):
        worker()
        make_job(task="shop.tasks.gone")
        lease = claim_one()
        settle_run(lease, RuntimeError())
        assert first(of_queue(), "unknown_task").evidence["task"] == "shop.tasks.gone"


class TestAQueueWhoseJobsWaitBehindGates:
    def test_names_the_slots_that_they_wait_for(self, worker, limited):
        worker("w")
        ids = add(3, limited(concurrency_limit=1))
        taken()
        found = of_queue()
        assert first(found, "slot").evidence["jobs"] == ids[:1]
        assert codes(found) == ["slot", "running"]

    def test_names_the_rate_that_they_wait_for(self, limited):
        add(2, limited(rate_limit="1/h"))
        taken()
        assert codes(of_queue())[0] == "rate"

    def test_names_the_breaker_that_they_wait_for(self, limited):
        limited(dependency="stripe").enqueue()
        breaker("stripe").open("x")
        taken()
        assert codes(of_queue())[0] == "breaker"

    def test_names_the_task_that_is_paused(self, limited):
        made = limited()
        made.enqueue()
        pause("q", task=made, reason="r")
        assert first(of_queue(), "paused").evidence["task"] == jobs.WORK
        taken()
        assert first(of_queue(), "paused").evidence["task"] == jobs.WORK

    def test_names_the_ordering_key_that_they_wait_for(self, worker):
        worker("w")
        one, _ = (enqueue("q", n, ordering_key="k") for n in range(2))
        claim_one()
        assert first(of_queue(), "key").evidence["first_job"] == one

    @pytest.mark.parametrize("ahead", [-60, 60])
    def test_says_that_the_first_of_them_expires_before_it_can_start(self, worker, ahead):
        worker("w")
        _, behind = (enqueue("q", n, ordering_key="k") for n in range(2))
        claim_one()
        set_columns(behind, expires_at=UtcNowPlus(ahead), run_at=UtcNowPlus(ahead))
        one = named(of_queue(), "expired")
        assert one.evidence["job_id"] == behind
        assert "when it is let in" in one.next_step.lower()

    def test_names_a_held_job(self, own_registry):
        job_id = int(task(queue_name="q", on_crash="hold")(jobs.work).enqueue().id)
        expire(claim_one())
        reap()
        assert first(of_queue(), "held").evidence["job_id"] == job_id

    def test_tells_first_what_keeps_those_from_starting_that_are_due(self, worker, limited):
        worker("w")
        add(2, limited(concurrency_limit=1))
        taken()
        make_job()
        found = of_queue()
        assert codes(found)[:2] == ["workers_busy", "slot"]
        assert named(found, "running")
