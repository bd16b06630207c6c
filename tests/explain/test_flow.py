"""explain_job() of jobs that pauses, limits, breakers and ordering keys keep from starting."""

from datetime import timedelta

import pytest

from jobqueue import enqueue
from jobqueue.exceptions import QueueFull
from jobqueue.flow import breaker, clear_limit, drain, pause, resume, set_limit
from jobqueue.models import BreakerState, Gate, Job
from jobqueue.transitions import ack, discard, fail
from tests.explain.helpers import codes, first, named, of_job, of_queue
from tests.factories import claim_one, job, make_job, make_jobs, now, set_columns
from tests.gates import jobs
from tests.gates.helpers import add, take, taken, waiting
from tests.memories import know_no_tasks

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


class TestAPause:
    def test_of_the_queue_says_who_why_and_until_when(self):
        job_id, until = make_job(), now() + HOUR
        pause("q", reason="the mail server moves", by="ann", until=until)
        one = first(of_job(job_id), "paused")
        assert "the mail server moves" in one.text
        assert one.evidence["by"] == "ann"
        assert one.evidence["until"] == until.isoformat()
        assert one.evidence["task"] is None
        assert "ends by itself" in one.next_step

    def test_without_an_end_names_whom_to_ask(self):
        job_id = make_job()
        pause("q", reason="r", by="ann")
        assert "Ask ann" in of_job(job_id)[0].next_step
        pause("q", reason="r")
        assert "resume()" in of_job(job_id)[0].next_step

    def test_of_a_task_holds_its_jobs_before_and_after_a_claim_has_read_them(self, limited):
        made = limited()
        (job_id,) = add(1, made)
        pause("q", task=made, reason="r")
        before = first(of_job(job_id), "paused")
        assert before.evidence["task"] == jobs.WORK
        assert taken() == []
        assert waiting() == [job_id]
        assert first(of_job(job_id), "paused").evidence == before.evidence

    def test_of_another_task_is_no_reason(self, limited):
        pause("q", task=limited(), reason="r")
        assert "paused" not in codes(of_job(make_job()))

    def test_that_is_over_or_ended_is_no_reason(self):
        job_id = make_job()
        pause("q", reason="r")
        resume("q")
        assert "paused" not in codes(of_job(job_id))

    def test_holds_a_job_that_is_not_due_as_well(self):
        job_id = enqueue("q", 1, run_at=now() + HOUR)
        pause("q", reason="r")
        assert codes(of_job(job_id))[:2] == ["paused", "not_due"]

    @pytest.mark.parametrize("limit", [{"concurrency": 0}, {"rate": 0}])
    def test_is_what_a_limit_of_0_is(self, limit, limited):
        job_id = make_job()
        set_limit("q", **limit)
        assert "limit of 0" in first(of_job(job_id), "paused").text
        clear_limit("q")
        made = limited()
        set_limit("q", task=made, **limit)
        assert first(of_job(made.enqueue().id), "paused").evidence["task"] == jobs.WORK


def test_a_drained_queue_lets_its_jobs_run_and_says_so(worker):
    worker()
    job_id = make_job()
    drain("q", reason="the last day", by="ann")
    with pytest.raises(QueueFull):
        make_job()
    found = of_job(job_id)
    assert codes(found)[0] == "workers_busy"
    assert named(found, "draining").evidence["reason"] == "the last day"


class TestASlot:
    def test_says_how_many_run_and_which(self, limited):
        ids = add(4, limited(concurrency_limit=2))
        assert taken() == ids[:2]
        one = first(of_job(ids[3]), "slot")
        assert one.evidence == {
            "queue": "q",
            "task": jobs.WORK,
            "concurrency_key": None,
            "limit": 2,
            "running": 2,
            "jobs": ids[:2],
        }
        assert f"2 of 2, by {ids[0]}, {ids[1]}" in one.text

    def test_is_the_reason_before_a_claim_has_read_the_job(self, limited):
        made = limited(concurrency_limit=1)
        (running,) = add(1, made)
        assert taken() == [running]
        (job_id,) = add(1, made)
        assert job(job_id).gate == 0
        assert first(of_job(job_id), "slot").evidence["jobs"] == [running]

    def test_that_is_free_is_no_reason(self, worker, limited):
        worker()
        ids = add(2, limited(concurrency_limit=5))
        assert taken(1) == ids[:1]
        assert codes(of_job(ids[1])) == ["workers_busy"]

    def test_names_ten_jobs_at_most(self, limited):
        ids = add(13, limited(concurrency_limit=12))
        taken()
        one = first(of_job(ids[12]), "slot")
        assert one.evidence["jobs"] == ids[:10]
        assert one.evidence["running"] == 12
        assert one.text.count(",") > 10

    def test_is_known_to_a_process_that_does_not_know_the_task(self, limited, monkeypatch):
        ids = add(2, limited(concurrency_limit=1))
        taken()
        know_no_tasks(monkeypatch)
        one = first(of_job(ids[1]), "slot")
        assert (one.evidence["limit"], one.evidence["jobs"]) == (1, ids[:1])

    def test_that_was_freed_and_not_given_away_yet_is_told_as_free(self, limited):
        ids = add(2, limited(concurrency_limit=1))
        leases = take()
        # As by a process that died between its two commits.
        Job.objects.filter(pk=ids[0]).update(status=2, locked_by=None, lock_token=None, locked_at=None, lock_until=None)
        assert leases
        one = first(of_job(ids[1]), "slot")
        assert one.evidence["running"] == 0
        assert "free slot" in one.text

    def test_of_a_concurrency_key_has_the_code_of_the_wait_reason(self, limited):
        made = limited(concurrency_key=jobs.by_argument, concurrency_limit=1)
        ids = [*add(2, made, "order-5"), *add(1, made, "order-6")]
        assert taken() == [ids[0], ids[2]]
        assert job(ids[1]).wait_reason == "key order-5"
        one = first(of_job(ids[1]), "key")
        assert one.evidence["kind"] == "concurrency"
        assert one.evidence["concurrency_key"] == "order-5"
        assert (one.evidence["limit"], one.evidence["jobs"]) == (1, ids[:1])

    def test_of_the_whole_queue_is_told_though_no_job_stands_behind_a_gate(self):
        ids = make_jobs(3)
        set_limit("q", concurrency=2)
        assert taken() == ids[:2]
        one = first(of_job(ids[2]), "slot")
        assert one.evidence["task"] is None
        assert (one.evidence["limit"], one.evidence["running"]) == (2, 2)
        assert sorted(one.evidence["jobs"]) == ids[:2]


class TestARate:
    def test_says_when_the_next_token_comes(self, limited):
        ids = add(3, limited(rate_limit="1/h"))
        assert taken() == ids[:1]
        one = first(of_job(ids[1]), "rate")
        assert 3500 < one.evidence["seconds"] <= 3600
        assert one.evidence["per_second"] == pytest.approx(1 / 3600)
        assert "at 1/h at most" in one.text
        assert one.evidence["next_at"] > now().isoformat()

    def test_of_a_key_names_the_key(self, limited):
        made = limited(concurrency_key=jobs.by_argument, rate_limit="1/h")
        ids = add(2, made, "order-5")
        taken()
        assert first(of_job(ids[1]), "rate").evidence["concurrency_key"] == "order-5"

    def test_is_the_reason_before_a_claim_has_read_the_job(self, limited):
        made = limited(rate_limit="1/h")
        add(1, made)
        taken()
        assert codes(of_job(made.enqueue().id))[0] == "rate"

    def test_with_a_token_is_no_reason(self, worker, limited):
        worker()
        assert codes(of_job(limited(rate_limit="1/h").enqueue().id)) == ["workers_busy"]

    def test_of_a_job_behind_the_gate_whose_token_is_there_again_says_that(self, limited):
        ids = add(2, limited(rate_limit="1/h"))
        taken()
        Gate.objects.filter(per_second__isnull=False).update(used_until=now() - HOUR)
        assert first(of_job(ids[1]), "rate").evidence["seconds"] == 0

    def test_of_the_whole_queue_is_told(self):
        ids = make_jobs(2)
        set_limit("q", rate="1/m")
        assert taken() == ids[:1]
        one = first(of_job(ids[1]), "rate")
        assert one.evidence["task"] is None
        assert 50 < one.evidence["seconds"] <= 60

    def test_is_the_first_reason_if_the_job_waits_for_it_though_all_slots_are_taken_too(self, limited):
        ids = add(2, limited(rate_limit="1/h", concurrency_limit=5))
        taken()
        set_limit("q", task=jobs.WORK, concurrency=1)
        assert codes(of_job(ids[1]))[:2] == ["rate", "slot"]


class TestABreaker:
    @pytest.fixture
    def waits(self, limited):
        """The id of a job that needs stripe."""
        return int(limited(dependency="stripe").enqueue().id)

    def test_that_somebody_has_opened_says_why_and_until_when(self, waits):
        breaker("stripe").open("they have an outage", until=now() + HOUR)
        one = first(of_job(waits), "breaker")
        assert "they have an outage" in one.text
        assert one.evidence["state"] == "open"
        assert one.evidence["by_hand"] is True
        assert "closes in" in one.next_step
        breaker("stripe").open("they have an outage")
        assert "stays open" in of_job(waits)[0].next_step

    def test_holds_a_job_behind_its_gate_too(self, waits):
        breaker("stripe").open("they have an outage")
        assert taken() == []
        assert job(waits).wait_reason == "breaker stripe"
        assert first(of_job(waits), "breaker").evidence["dependency"] == "stripe"

    def test_that_is_open_says_when_the_next_probe_may_start(self, waits):
        at = now() + timedelta(seconds=30)
        BreakerState.objects.create(
            dependency="stripe", state="open", reason="5 failures", since=now() - HOUR, probe_at=at
        )
        one = first(of_job(waits), "breaker")
        assert one.evidence["probe_at"] == at.isoformat()
        assert one.evidence["since"] == (BreakerState.objects.get().since).isoformat()
        assert "5 failures" in one.text
        assert "probe" in one.next_step

    def test_that_is_half_open_names_its_probe(self, waits):
        BreakerState.objects.create(dependency="stripe", state="half-open", since=now(), probe_job=77, probe_fence=1)
        one = first(of_job(waits), "breaker")
        assert one.evidence["state"] == "half-open"
        assert one.evidence["probe_job"] == 77
        assert "job 77" in one.text.lower()

    def test_that_is_closed_is_no_reason(self, waits):
        breaker("stripe").open("x")
        breaker("stripe").close()
        assert "breaker" not in codes(of_job(waits))

    def test_that_was_closed_a_moment_ago_is_told_to_jobs_behind_its_gate(self, waits):
        breaker("stripe").open("x")
        taken()
        breaker("stripe").close()
        assert first(of_job(waits), "breaker").evidence["state"] == "closed"

    def test_of_a_row_that_names_the_dependency_itself_counts_as_well(self):
        job_id = make_job(dependency="stripe")
        breaker("stripe").open("x")
        assert first(of_job(job_id), "breaker")


class TestAnOrderingKey:
    def behind(self, **columns):
        """(first, second) of a key, of which the first has these columns."""
        one, two = (enqueue("q", n, ordering_key="k") for n in range(2))
        if columns:
            set_columns(one, **columns)
        return one, two

    def test_names_the_job_in_front_and_what_it_does(self):
        one, two = self.behind()
        lease = claim_one()
        found = first(of_job(two), "key")
        assert found.evidence["kind"] == "ordering"
        assert found.evidence["ordering_key"] == "k"
        assert (found.evidence["first_job"], found.evidence["first_state"]) == (one, "running")
        ack(lease)
        assert "key" not in codes(of_job(two))

    def test_says_that_the_job_in_front_is_not_due(self):
        one, two = self.behind(run_at=now() + HOUR)
        assert first(of_job(two), "key").evidence["first_state"] == "scheduled"
        assert f"job {one}".lower() in of_job(two)[0].text.lower()

    def test_says_that_the_job_in_front_has_failed(self):
        _, two = self.behind(max_attempts=1)
        fail(claim_one(), error="boom")
        found = first(of_job(two), "key")
        assert found.evidence["first_state"] == "failed"
        assert "resume()" in found.next_step

    def test_says_that_the_key_is_halted(self, settings):
        settings.JOBQUEUE = {"ON_KEY_FAILURE": "halt"}
        one, two = self.behind(max_attempts=1)
        fail(claim_one(), error="boom")
        assert first(of_job(two), "key").evidence["first_state"] == "failed"
        assert discard(one)
        found = first(of_job(two), "key")
        assert found.evidence["first_state"] == "halted"
        assert found.evidence["first_job"] == two
        assert "resume()" in found.next_step

    def test_says_that_the_job_in_front_waits_for_a_worker(self):
        one, two = self.behind()
        found = first(of_job(two), "key")
        assert found.evidence["first_state"] == "ready"
        assert f"jobs explain {one}" in found.next_step

    def test_says_what_the_job_in_front_waits_for(self, limited):
        made = limited(concurrency_limit=1)
        made.enqueue()
        taken()
        _, two = (int(made.using(ordering_key="k").enqueue().id) for _ in range(2))
        taken()
        found = first(of_job(two), "key")
        assert found.evidence["first_state"] == "waiting"
        assert f"all slots of task {jobs.WORK} are taken" in found.text

    def test_of_which_the_first_job_was_deleted_by_plain_sql_says_so(self):
        one, two = self.behind()
        Job.objects.filter(pk=one).delete()
        assert first(of_job(two), "key").evidence["first_state"] == "ended"

    def test_that_is_no_text_is_shown(self):
        enqueue("q", 1, ordering_key=b"\xff\x00")
        job_id = enqueue("q", 1, ordering_key=b"\xff\x00")
        assert first(of_job(job_id), "key").evidence["ordering_key"].startswith("\\xff")


class TestAGateBehindWhichNothingIsFound:
    def test_after_the_end_of_a_pause_is_said_to_open_soon(self, worker, limited):
        worker("w")
        made = limited()
        (job_id,) = add(1, made)
        pause("q", task=made, reason="r")
        taken()
        resume("q", task=made)
        one = first(of_job(job_id), "paused")
        assert "nothing holds it there any more" in one.text
        assert codes(of_queue()) == ["paused"]

    @pytest.mark.parametrize(
        ("gate", "reason", "code"), [(7, "something new", "held"), (7, None, "held"), (1, None, "key")]
    )
    def test_of_a_later_release_or_of_plain_sql_is_not_said_to_be_open(self, worker, gate, reason, code):
        worker()
        one = first(of_job(make_job(gate=gate, wait_reason=reason)), code)
        assert one.evidence["gate"] == gate
        assert (reason or "-") in one.text


def test_what_an_operator_does_is_told_at_once_although_claims_remember_for_a_moment(limited):
    made = limited()
    (job_id,) = add(1, made)
    assert codes(of_job(job_id))[0] == "no_worker"
    # By another process: nothing here is told to forget what it knows.
    pause("q", reason="r")
    assert codes(of_job(job_id))[0] == "paused"
