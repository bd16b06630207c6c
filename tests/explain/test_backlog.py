"""explain_backlog(): why due jobs do not start, in all queues."""

from datetime import timedelta

import pytest

from jobqueue import enqueue, enqueue_many, task, workflow
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import JobQueueError
from jobqueue.explain import explain_backlog, explanation, rows
from jobqueue.explain.backlog import SPOTS_MAX
from jobqueue.flow import breaker, drain, pause, set_limit
from jobqueue.models import Job
from jobqueue.models.job import HELD_GATE, HELD_REASON
from jobqueue.transitions import reap
from tests.app import tasks
from tests.explain.helpers import checked, codes, first, named
from tests.factories import claim_one, expire, make_in_state, make_job, make_jobs, now, set_columns, settle_run
from tests.gates import jobs
from tests.gates.helpers import add, taken

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def backlog():
    """explain_backlog(), checked."""
    return checked(explain_backlog())


def about(one):
    """How many jobs it is about, and in which queues."""
    return one.evidence["waiting_jobs"], one.evidence["queues"]


def test_an_unknown_database_is_refused():
    with pytest.raises(JobQueueError, match="not in DATABASES"):
        explain_backlog(using="nowhere")


class TestWithoutWaitingJobs:
    def test_says_that_there_are_none(self):
        (one,) = backlog()
        assert first([one], "ended").evidence["queues_total"] == 0
        make_in_state("DONE")
        make_in_state("FAILED")
        assert codes(backlog()) == ["ended"]

    def test_says_that_jobs_run_and_where(self):
        make_job("a")
        make_job("b")
        ids = [claim_one(queue).job_id for queue in ("a", "b")]
        (one,) = backlog()
        assert first([one], "running").evidence["jobs"] == ids
        assert one.evidence["queues"] == ["a", "b"]

    def test_names_the_delayed_job_of_all_queues_that_comes_first(self, worker):
        worker()
        enqueue("a", 1, run_at=now() + 3 * HOUR)
        soon = enqueue("b", 1, run_at=now() + HOUR)
        (one,) = backlog()
        assert first([one], "not_due").evidence["job_id"] == soon
        assert about(one) == (2, ["a", "b"])

    def test_a_drain_and_a_pause_that_hold_up_no_job_are_no_reasons(self, worker):
        worker()
        drain("q", reason="r")
        pause("p", reason="r")
        enqueue("p", 1, run_at=now() + HOUR)
        assert codes(backlog()) == ["not_due"]


class TestWithoutAWorker:
    def test_one_reason_names_all_queues(self):
        for queue in ("a", "b", "c"):
            make_jobs(2, queue)
        (one,) = backlog()
        assert about(first([one], "no_worker")) == (6, ["a", "b", "c"])
        assert "6, in a, b, c" in one.text
        assert one.evidence["living"] == 0

    def test_queues_that_other_workers_leave_out_are_one_reason(self, worker):
        worker(queues="mail, web")
        for queue in ("a", "b", "mail"):
            make_job(queue)
        found = backlog()
        assert codes(found) == ["no_worker", "workers_busy"]
        assert about(found[0]) == (2, ["a", "b"])
        assert "--queues a,b" in found[0].next_step
        assert found[0].evidence["serve"] == ["mail, web"]

    def test_no_more_queues_are_named_than_ten(self):
        for number in range(explanation.QUEUES_SHOWN + 2):
            make_job(f"q{number:02}")
        one = first(backlog(), "no_worker")
        assert len(one.evidence["queues"]) == explanation.QUEUES_SHOWN
        assert one.evidence["queues_total"] == explanation.QUEUES_SHOWN + 2
        assert "q09, ..." in one.text


class TestTheOrder:
    def test_the_cause_of_most_due_jobs_comes_first(self, worker):
        worker(queues="few, many")
        for queue, count in (("few", 2), ("many", 5), ("unserved", 3)):
            make_jobs(count, queue)
        pause("few", reason="r")
        pause("many", reason="r")
        found = backlog()
        assert [(one.code, *about(one)) for one in found] == [
            ("paused", 5, ["many"]),
            ("no_worker", 3, ["unserved"]),
            ("paused", 2, ["few"]),
        ]

    def test_what_holds_up_one_job_comes_before_many_that_the_next_free_worker_starts(self, worker):
        worker()
        make_jobs(9, "healthy")
        make_job("q")
        pause("q", reason="r")
        found = backlog()
        assert codes(found) == ["paused", "workers_busy"]
        assert about(found[1]) == (9, ["healthy"])

    def test_a_reason_without_a_full_stop_gets_one_before_the_next_sentence(self, worker):
        make_jobs(2, "mail")
        pause("mail", reason="the server moves")
        assert "the server moves. Due jobs that it holds up: 2, in mail." in explain_backlog()[0].text

    def test_a_pause_comes_before_the_missing_worker_of_its_queue(self):
        make_jobs(2)
        pause("q", reason="r", by="ann")
        found = backlog()
        assert codes(found) == ["paused", "no_worker"]
        assert found[0].evidence["by"] == "ann"

    def test_no_more_than_twenty_causes_are_told(self):
        for number in range(explanation.FINDINGS_MAX + 3):
            make_job(f"q{number}")
            pause(f"q{number}", reason="r")
        assert len(backlog()) == explanation.FINDINGS_MAX


class TestBusyWorkers:
    def test_hold_up_the_due_jobs_of_all_queues_that_they_serve(self, worker):
        worker("w")
        ids = make_jobs(4, "a") + make_jobs(1, "b")
        for _ in range(2):
            claim_one("a")
        (one,) = backlog()
        assert about(first([one], "workers_busy")) == (3, ["a", "b"])
        assert (one.evidence["leases"], one.evidence["full"], one.evidence["worker_names"]) == (2, True, ["w"])
        assert "busy" in one.text
        assert len(ids) == 5

    def test_of_two_crews_are_told_one_by_one(self, worker):
        worker("w1", "a", concurrency=1)
        worker("w2", "b", concurrency=1)
        make_jobs(3, "a")
        make_jobs(2, "b")
        claim_one("a", worker="w1")
        found = backlog()
        assert [(one.code, one.evidence["full"], *about(one)) for one in found] == [
            ("workers_busy", True, 2, ["a"]),
            ("workers_busy", False, 2, ["b"]),
        ]


class TestLimits:
    def test_of_a_queue_hold_up_its_due_jobs(self, worker):
        worker("w")
        make_jobs(5)
        set_limit("q", concurrency=2)
        taken()
        assert about(first(backlog(), "slot")) == (3, ["q"])
        assert codes(backlog()) == ["slot"]

    def test_of_tasks_are_told_one_by_one_with_their_own_numbers(self, worker, own_registry):
        worker("w")
        one = task(queue_name="q", concurrency_limit=1)(jobs.work)
        two = task(queue_name="q", rate_limit="1/h")(jobs.other)
        add(6, one)
        add(3, two)
        taken()
        found = backlog()
        assert [(one.code, *about(one)) for one in found] == [("slot", 5, ["q"]), ("rate", 2, ["q"])]
        assert found[0].evidence["task"] == jobs.WORK

    def test_a_breaker_is_one_reason_for_all_queues(self, worker, limited):
        worker("w")
        made = limited(dependency="stripe")
        add(2, made)
        add(3, made.using(queue_name="p"))
        breaker("stripe").open("down")
        taken()
        taken(queue="p")
        (one,) = backlog()
        assert about(first([one], "breaker")) == (5, ["p", "q"])

    def test_a_task_whose_jobs_no_claim_has_met_yet_does_not_hold_up_other_tasks(self, worker, limited):
        worker("w")
        made = limited()
        add(2, made)
        pause("q", task=made, reason="r")
        make_jobs(3)
        found = backlog()
        assert [(one.code, *about(one)) for one in found] == [("paused", 2, ["q"]), ("workers_busy", 3, ["q"])]

    def test_jobs_are_told_from_those_of_other_subjects_by_what_was_read_and_counted_in_all(
        self, worker, limited, monkeypatch
    ):
        monkeypatch.setattr("jobqueue.explain.backlog.SAMPLE_MAX", 2)
        worker("w")
        add(6, limited(concurrency_limit=1))
        taken()
        assert about(first(backlog(), "slot")) == (5, ["q"])


class TestGates:
    def test_jobs_behind_their_ordering_keys_are_one_reason_for_each_queue(self, worker):
        worker("w")
        for key in ("k", "l"):
            enqueue_many("q", range(3), ordering_key=key)
        for _ in range(2):
            claim_one()
        (one,) = backlog()
        assert about(first([one], "key")) == (4, ["q"])
        assert one.text.startswith("Jobs that wait like this: 4, in q. The first one: ")

    def test_held_jobs_are_counted(self, worker, own_registry):
        worker("w")
        made = task(queue_name="q", on_crash="hold")(jobs.work)
        add(2, made)
        expire(claim_one(), claim_one())
        reap()
        (one,) = backlog()
        assert about(first([one], "held")) == (2, ["q"])

    def test_nodes_that_wait_for_their_parents_come_after_what_holds_up_due_jobs(self, worker):
        worker("w", "default")
        wf = workflow("wide")
        top = wf.add(tasks.add, 1, 1, name="top")
        for _ in range(4):
            wf.add(tasks.add, 1, 1, after=[top])
        wf.start()
        make_job("unserved")
        found = backlog()
        assert codes(found) == ["no_worker", "parents", "workers_busy"]
        assert about(found[1]) == (4, ["default"])

    def test_jobs_that_workers_have_put_back_are_found_behind_due_ones(self, worker):
        worker()
        for _ in range(2):
            make_job(task="shop.tasks.gone")
            settle_run(claim_one(), RuntimeError())
        make_jobs(3)
        found = backlog()
        assert about(first(found, "unknown_task")) == (2, ["q"])
        assert codes(found) == ["unknown_task", "workers_busy"]
        assert found[0].evidence["task"] == "shop.tasks.gone"


class TestItsCounts:
    def test_end_at_a_number_and_say_so(self, monkeypatch):
        monkeypatch.setattr(rows, "COUNT_MAX", 3)
        make_jobs(5)
        one = first(backlog(), "no_worker")
        assert about(one) == (3, ["q"])
        assert one.evidence["waiting_capped"] is True
        assert "3+, in q" in one.text

    def test_of_many_small_queues_do_not_cut_that_of_a_large_one(self, worker, monkeypatch):
        monkeypatch.setattr(rows, "ENTRIES_MAX", 30)
        monkeypatch.setattr(rows, "COUNT_LEAST", 3)
        worker(queues="large")
        enqueue_many("large", range(20))
        pause("large", reason="r")
        for number in range(9):
            make_jobs(2, f"small{number}")
        found = backlog()
        assert [(one.code, one.evidence["waiting_jobs"]) for one in found] == [("paused", 20), ("no_worker", 18)]
        assert not any(one.evidence["waiting_capped"] for one in found)

    def test_of_small_queues_that_reach_the_first_cap_do_not_cut_that_of_a_large_one(self, worker, monkeypatch):
        monkeypatch.setattr(rows, "ENTRIES_MAX", 12)
        monkeypatch.setattr(rows, "COUNT_LEAST", 2)
        worker(queues="large")
        enqueue_many("large", range(20))
        pause("large", reason="r")
        for number in range(4):
            make_jobs(3, f"small{number}")
        assert about(first(backlog(), "paused")) == (20, ["large"])

    def test_include_all_priorities_and_no_delayed_jobs(self):
        for priority in (3, 2, 1):
            enqueue("q", 1, priority=priority)
            enqueue("q", 1, priority=priority, run_at=now() + HOUR)
        enqueue("q", 1, priority=9, run_at=now() + HOUR)
        one = named(backlog(), "no_worker")
        assert about(one) == (3, ["q"])
        assert one.evidence["waiting_capped"] is False

    def test_say_that_there_are_more_queues_than_were_looked_at(self, monkeypatch):
        monkeypatch.setattr(rows, "QUEUES_MAX", 2)
        for queue in "abc":
            make_job(queue)
        one = named(backlog(), "no_worker")
        assert about(one) == (2, ["a", "b"])
        assert one.evidence["queues_cut"] is True

    def test_say_that_there_are_more_names_than_were_looked_at(self, monkeypatch):
        monkeypatch.setattr(rows, "NAMES_MAX", 2)
        for queue in "abc":
            make_job(queue)
        one = named(backlog(), "no_worker")
        assert (about(one), one.evidence["queues_cut"]) == ((2, ["a", "b"]), True)

    def test_leave_out_queues_of_which_only_ended_jobs_are_left(self, monkeypatch):
        monkeypatch.setattr(rows, "QUEUES_MAX", 1)
        make_in_state("DONE", "a")
        make_job("b")
        one = named(backlog(), "no_worker")
        assert about(one) == (1, ["b"])
        assert one.evidence["queues_cut"] is False


def test_healthy_jobs_give_no_reason_but_that_a_free_worker_starts_them(worker):
    worker(concurrency=50)
    for queue in ("a", "b", "c"):
        enqueue_many(queue, range(20))
        claim_one(queue, worker="w1", lease_seconds=3600)
    found = backlog()
    assert [(one.code, one.evidence["full"]) for one in found] == [("workers_busy", False)]
    assert about(found[0]) == (57, ["a", "b", "c"])


def test_a_lost_lease_does_not_count_as_waiting(worker):
    worker("w")
    make_job()
    set_columns(claim_one().job_id, lock_until=UtcNowPlus(-10))
    assert Job.objects.filter(lock_until__lt=UtcNowPlus(0)).exists()
    assert codes(backlog()) == ["running"]


def test_a_job_with_a_row_that_says_nothing_is_not_lost(worker):
    worker("w")
    set_columns(make_job(), gate=3, wait_reason="slot x")
    one = first(backlog(), "slot")
    assert about(one) == (1, ["q"])
    assert "nothing holds it there any more" in one.text


def test_many_queues_with_free_jobs_do_not_hide_what_few_jobs_wait_for(worker):
    worker("w", concurrency=200)
    for number in range(SPOTS_MAX + 5):
        make_jobs(2, f"q{number}")
    job_id = make_job("held")
    set_columns(job_id, gate=HELD_GATE, wait_reason=HELD_REASON)
    assert {"held", "workers_busy"} <= {*codes(backlog())}
