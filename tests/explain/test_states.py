"""explain_job() of jobs whose own row tells: ended, running, delayed, parked, held, expired."""

import dataclasses
import re
from datetime import datetime, timedelta

import pytest
from django.db import transaction

from jobqueue import enqueue, task
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidType, InvalidValue, JobQueueError, Snooze
from jobqueue.explain import explain_job, states
from jobqueue.models.job import ALONE_REASON, HELD_GATE, HELD_REASON, QUARANTINED
from jobqueue.transitions import cancel, fail, reap, release
from jobqueue.transitions.releasing import hold_many
from tests.explain.helpers import codes, first, named, of_job
from tests.factories import (
    claim_one,
    expire,
    job,
    make_in_state,
    make_job,
    now,
    seconds_from_now,
    set_columns,
    settle_run,
)
from tests.gates import jobs
from tests.marks import finding

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def test_an_explanation_cannot_be_changed():
    (one, *_) = of_job(make_job())
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.code = "x"


def test_a_job_is_named_by_its_id_as_a_number_or_as_text():
    job_id = make_in_state("DONE")
    assert of_job(str(job_id))[0].evidence == of_job(job_id)[0].evidence


@pytest.mark.parametrize("unknown", [10**9, "77777777", 0, -1, 2**63, 10**19])
def test_an_id_that_no_job_has_is_refused(unknown):
    make_job()
    with pytest.raises(InvalidValue, match=r"there is no job .* Nothing was explained"):
        explain_job(unknown)


@pytest.mark.parametrize("wrong", [None, "x", "", 1.5, True, b"1"])
def test_what_is_no_id_is_refused(wrong):
    with pytest.raises(InvalidType):
        explain_job(wrong)


def test_an_unknown_database_is_refused():
    with pytest.raises(JobQueueError, match="not in DATABASES"):
        explain_job(1, using="nowhere")


def test_an_answer_leaves_the_callers_transaction_usable():
    with transaction.atomic():
        job_id = make_job()
        with pytest.raises(InvalidValue):
            explain_job(10**9)
        assert codes(of_job(job_id))
        transaction.set_rollback(True)


@pytest.mark.parametrize("name", ["DONE", "FAILED", "CANCELED"])
def test_a_job_that_has_ended_says_how(name):
    job_id = make_in_state(name)
    (one,) = of_job(job_id)
    assert first([one], "ended").evidence["status"] == name
    assert one.evidence["finished_at"] == job(job_id).finished_at.isoformat()


def test_a_job_that_may_have_killed_its_workers_is_quarantined():
    job_id = make_in_state("FAILED")
    set_columns(job_id, wait_reason=QUARANTINED, crashes=3)
    (one,) = of_job(job_id)
    assert first([one], "quarantined").evidence["crashes"] == 3
    assert "alone" in one.next_step


class TestARunningJob:
    def test_names_its_worker_and_its_lease(self):
        job_id = make_in_state("PROCESSING")
        (one,) = of_job(job_id)
        assert first([one], "running").evidence["worker"] == "owner"
        assert one.evidence["lease_until"] == job(job_id).lock_until.isoformat()
        assert one.evidence["lease_expired"] is one.evidence["cancel_requested"] is False
        assert one.evidence["attempt"] == 1

    def test_says_that_it_was_asked_to_stop(self):
        job_id = make_in_state("PROCESSING")
        assert cancel(job_id)
        (one,) = of_job(job_id)
        assert "asked to stop" in one.text
        assert one.evidence["kill_at"] is None

    def test_says_when_its_process_will_be_killed(self):
        job_id = make_in_state("PROCESSING")
        assert cancel(job_id, kill_after_seconds=600)
        (one,) = of_job(job_id)
        assert re.search(r"asked to stop\. If it has not stopped in (10m|9m 59s)", one.text), one.text
        assert 590 < seconds_from_now(datetime.fromisoformat(one.evidence["kill_at"])) <= 600
        set_columns(job_id, fence=job(job_id).fence + 1)
        (one,) = of_job(job_id)
        assert one.evidence["kill_at"] is None, "the request was for the run before"

    def test_says_that_its_lease_has_expired(self):
        job_id = make_in_state("PROCESSING")
        set_columns(job_id, lock_until=UtcNowPlus(-5))
        (one,) = of_job(job_id)
        assert first([one], "running").evidence["lease_expired"] is True
        assert "expired" in one.text


class TestAJobThatIsNotDue:
    def test_says_when_it_is(self, worker):
        worker()
        job_id = enqueue("q", 1, run_at=now() + HOUR)
        one = first(of_job(job_id), "not_due")
        assert one.evidence["run_at"] == job(job_id).run_at.isoformat()
        assert 3500 < one.evidence["seconds"] <= 3600
        assert "is due in 1h 0m" in one.text or "is due in 59m" in one.text
        assert "because of" not in one.text

    def test_says_why_it_is_retried_later(self, worker):
        worker()
        job_id = make_job()
        fail(claim_one(), error=ValueError("no funds"))
        assert "because of: retry 2 of 25 after ValueError: no funds" in of_job(job_id)[0].text

    def test_says_so_too_if_it_has_snoozed(self, worker, limited):
        worker()
        job_id = int(limited().enqueue().id)
        settle_run(claim_one(), Snooze(600))
        assert "snoozed" in first(of_job(job_id), "not_due").text

    def test_tells_also_that_no_worker_would_take_it_then(self):
        assert codes(of_job(enqueue("q", 1, run_at=now() + HOUR)))[:2] == ["not_due", "no_worker"]


class TestAJobThatWorkersDoNotKnow:
    """The texts are those that a worker's own code has written."""

    def park(self, job_id, worker):
        worker()
        lease = claim_one()
        # The error is not raised: no function is found.
        settle_run(lease, RuntimeError())
        return first(of_job(job_id), "unknown_task")

    def test_by_its_task(self, worker):
        job_id = make_job(task="shop.tasks.gone")
        one = self.park(job_id, worker)
        assert "shop.tasks.gone" in one.text
        assert one.evidence["task"] == "shop.tasks.gone"
        assert one.evidence["known_here"] is False
        assert one.evidence["seconds"] > 8
        assert codes(of_job(job_id)).count("unknown_task") == 1

    def test_by_its_queue(self, worker):
        one = self.park(make_job(), worker)
        assert "no @handler for queue 'q'" in one.text

    def test_by_the_version_of_its_arguments(self, worker, limited):
        made = limited()
        one = self.park(make_job(task=made.module_path, payload={"args": [], "kwargs": {}, "version": 7}), worker)
        assert "version 7" in one.text
        assert one.evidence["known_here"] is True

    def test_is_due_again_after_a_minute_and_then_the_answer_is_another(self, worker):
        job_id = make_job(task="shop.tasks.gone")
        self.park(job_id, worker)
        set_columns(job_id, run_at=UtcNowPlus(-1))
        found = of_job(job_id)
        assert codes(found) == ["workers_busy", "unknown_task"]
        assert "this process does not know" in named(found, "unknown_task").text

    def test_a_task_that_this_process_knows_is_not_said_to_be_unknown(self, worker, limited):
        worker()
        assert codes(of_job(limited().enqueue().id)) == ["workers_busy"]


class TestAHeldJob:
    def test_after_a_crash_waits_for_people(self, own_registry):
        made = task(queue_name="q", on_crash="hold")(jobs.work)
        job_id = int(made.enqueue().id)
        expire(claim_one())
        reap()
        assert job(job_id).gate == HELD_GATE
        one = first(of_job(job_id), "held")
        assert one.evidence["wait_reason"] == HELD_REASON
        assert "on_crash" in one.text
        assert "discard" in one.next_step

    def test_that_is_to_run_alone_says_that(self):
        job_id = make_job()
        assert hold_many([claim_one()], ALONE_REASON) == []
        assert "process of its own" in first(of_job(job_id), "held").text


@pytest.mark.parametrize(
    "columns", [{"expires_at": UtcNowPlus(-1)}, {"run_at": UtcNowPlus(600), "expires_at": UtcNowPlus(60)}]
)
def test_a_job_that_expires_before_it_can_start_says_so(columns):
    one = first(of_job(make_job(**columns)), "expired")
    assert one.evidence["expires_at"]
    assert "cancels it" in one.next_step


def test_a_job_that_was_released_is_as_one_that_never_ran(worker):
    worker()
    job_id = make_job()
    release(claim_one())
    assert codes(of_job(job_id))[0] == "workers_busy"


@finding("N5")
def test_a_process_that_has_not_imported_the_tasks_yet_imports_them_before_it_says_that_it_knows_none(monkeypatch):
    imported, job_id = [], make_job(task="orders.tasks.push")
    monkeypatch.setattr(states.registry, "find_task", lambda path: object() if imported else None)
    monkeypatch.setattr(states, "_import_tasks", lambda: not imported.append("all"), raising=False)
    assert "unknown_task" not in codes(of_job(job_id))


def test_the_tasks_are_imported_once(monkeypatch):
    asked = []
    monkeypatch.setattr(states.registry, "discover", lambda: asked.append(1) or [])
    states._import_tasks.cache_clear()
    assert [states._import_tasks() for _ in range(2)] == [True, True]
    assert asked == [1]
    states._import_tasks.cache_clear()
