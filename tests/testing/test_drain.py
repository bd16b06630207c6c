"""drain() does in a test what workers do in production."""

import logging
from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue import enqueue
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InsideTransaction, InvalidType, InvalidValue
from jobqueue.models import Job, JobAttempt
from jobqueue.testing import drain, expire_lease, travel
from jobqueue.testing.clock import Clock
from jobqueue.testing.draining import _Drainer
from jobqueue.transitions import ack, claim
from tests.app import kit
from tests.factories import job, make_job, state
from tests.patience import wait_until
from tests.races.actors import Actor

pytestmark = pytest.mark.usefixtures("kind")


def test_everything_that_is_due_runs_in_the_order_of_a_worker(sold):
    kit.sells.enqueue("a")
    kit.sells.using(priority=5).enqueue("b")
    kit.sells_slowly.enqueue("c")
    enqueue("parcels", {"number": "d"})
    drained = drain()
    assert (drained.ran, drained.ok, drained.failed, drained.dead) == (4, 4, 0, 0)
    assert sold() == ["b", "a", "d", "c"]
    assert set(Job.objects.values_list("status", flat=True)) == {Job.Status.DONE}
    assert drain().ran == 0


def test_one_queue_can_be_drained_alone(sold):
    kit.sells.enqueue("a")
    kit.sells_slowly.enqueue("b")
    assert drain("slow").ran == 1
    assert sold() == ["b"]


def test_the_result_is_stored():
    result = kit.sells.enqueue("a")
    drain()
    result.refresh()
    assert result.return_value == ["a"]


def test_delayed_jobs_wait_unless_the_clock_goes_on(sold):
    start = read_now("default")
    kit.sells.using(run_after=start + timedelta(hours=3)).enqueue("late")
    kit.sells.using(run_after=start + timedelta(hours=1)).enqueue("early")
    assert drain().ran == 0
    assert drain(until=timedelta(minutes=59)).ran == 0
    assert drain(now=start + timedelta(hours=2)).ran == 1
    assert drain(until=start + timedelta(hours=4)).ran == 1
    assert sold() == ["early", "late"]
    assert read_now("default") < start + timedelta(minutes=5), "the clock is back"


def test_retries_run_when_their_back_off_has_passed(sold):
    kit.fails_twice.enqueue("x")
    assert [str(run.error) for run in drain().runs] == ["attempt 1"]
    drained = drain(until=timedelta(hours=1))
    assert [run.outcome for run in drained.runs] == ["retry", "ok"]
    assert [run.attempt for run in drained.runs] == [2, 3]
    assert sold() == ["x-1", "x-2", "x-3"], "what an attempt wrote before it failed is there, as in production"
    assert JobAttempt.objects.count() == 2


def test_a_job_that_always_fails_is_dead_and_its_error_can_be_raised():
    kit.always_fails.enqueue()
    drained = drain(until=timedelta(days=1))
    assert (drained.ran, drained.failed, drained.dead) == (2, 2, 1)
    assert "LookupError: never" in str(drained)
    with pytest.raises(LookupError, match="never"):
        drained.raise_error()
    assert drain().raise_error().ran == 0


def test_what_jobs_enqueue_on_commit_runs_too(sold):
    kit.enqueues_when_committed.enqueue("x")
    assert drain().ran == 2
    assert sold() == ["x-parent", "x"]


def test_a_job_that_becomes_due_while_drain_looks_at_the_clock_runs(sold, monkeypatch):
    now, due_at = Clock.now, read_now("default") + timedelta(seconds=0.5)

    def slow(clock):
        wait_until(lambda: read_now("default") > due_at, what="its time")
        return now(clock)

    monkeypatch.setattr(Clock, "now", slow)
    kit.sells.using(run_after=due_at).enqueue("a")
    assert drain(until=timedelta(seconds=60)).ok == 1


def test_a_job_that_becomes_due_before_drain_looks_for_the_next_one_runs(sold, monkeypatch):
    next_due, due_at = _Drainer.next_due, read_now("default") + timedelta(seconds=0.5)

    def late(drainer, end):
        wait_until(lambda: read_now("default") > due_at, what="its time")
        return next_due(drainer, end)

    monkeypatch.setattr(_Drainer, "next_due", late)
    kit.sells.using(run_after=due_at).enqueue("a")
    assert drain(until=timedelta(seconds=60)).ok == 1


def test_what_jobs_delay_runs_until_the_end(sold):
    kit.comes_later.enqueue(100)
    assert drain(until=timedelta(seconds=200)).ran == 2
    assert sold() == ["later"]


def test_exactly_once_effects_end_their_job(sold):
    ids = [kit.finishes.enqueue("a").id, kit.finishes_in_a_transaction.enqueue("b").id]
    assert [run.outcome for run in drain().runs] == ["ok", "ok"]
    assert sold() == ["a", "b"]
    assert job(ids[0]).result == {"sold": "a"}
    assert [state(job_id) for job_id in ids] == ["DONE", "DONE"]


def test_coroutines_run(sold):
    kit.sells_as_a_coroutine.enqueue("a")
    assert drain().ok == 1
    assert sold() == ["a"]


def test_a_statement_that_the_database_refuses_costs_only_its_own_attempt(sold, kind):
    kit.breaks_the_statement.enqueue()
    kit.sells_twice.enqueue("a")
    kit.sells.enqueue("b")
    drained = drain()
    assert [run.outcome for run in drained.runs] == ["dead", "ok", "ok"]
    # In a test case Django undoes the savepoint of an attempt whose error it has seen in a write.
    assert sold() == (["b"] if kind == "rolled back" else ["a", "b"])


def test_a_limit_stops_and_without_one_an_endless_chain_is_told(monkeypatch):
    from jobqueue.testing import draining

    kit.enqueues_itself.enqueue()
    assert drain(limit=3).ran == 3
    monkeypatch.setattr(draining, "ENDLESS", 5)
    with pytest.raises(RuntimeError, match="If the job enqueues itself"):
        drain()


def test_an_unknown_task_is_parked_and_not_waited_for(caplog):
    job_id = make_job("q", {"args": [], "kwargs": {}}, task="gone.away")
    with caplog.at_level(logging.ERROR):
        drained = drain(until=timedelta(days=1))
    assert [run.outcome for run in drained.runs] == ["parked"]
    assert state(job_id) == "READY"


def test_a_lapsed_lease_is_reaped_and_the_job_runs_again(sold):
    kit.sells.enqueue("a")
    [lease] = claim("default", worker="gone")
    assert drain().ran == 0
    expire_lease(lease)
    [run] = drain().runs
    assert (run.outcome, run.attempt, sold()) == ("ok", 2, ["a"])


def test_a_lease_ends_when_the_clock_has_passed_it():
    kit.sells.enqueue("a")
    claim("default", worker="gone", lease_seconds=60)
    with travel(61):
        assert drain().ran == 1


def test_only_a_lease_that_somebody_holds_can_be_expired():
    result = kit.sells.enqueue("a")
    for known in (result, result.id, int(result.id), job(result.id)):
        with pytest.raises(InvalidValue, match="is READY, so it has no lease"):
            expire_lease(known)
    with pytest.raises(InvalidValue, match="not in the table"):
        expire_lease(10**9)
    [lease] = claim("default", worker="w")
    ack(lease)
    with pytest.raises(InvalidValue, match="is DONE"):
        expire_lease(lease)


def test_inside_a_transaction_of_ones_own_it_refuses():
    kit.sells.enqueue("a")
    with transaction.atomic(), pytest.raises(InsideTransaction):
        drain()


def test_travels_add_up_and_only_go_forward():
    start = read_now("default")
    with travel(timedelta(hours=1)) as clock:
        with travel(60):
            assert timedelta(minutes=61) <= read_now("default") - start < timedelta(minutes=62)
        clock.forward(60)
        clock.move_to(start + timedelta(hours=2))
        assert timedelta(hours=2) <= clock.now() - start < timedelta(hours=2, minutes=1)
        with pytest.raises(InvalidValue, match="only be moved forward"):
            clock.move_to(start)
    assert read_now("default") - start < timedelta(minutes=1)
    with pytest.raises(InvalidType), travel():
        pass
    with pytest.raises(InvalidValue), travel(-1):
        pass


def test_a_thread_may_travel_before_its_session_is_open():
    start = read_now("default")

    def ahead():
        with travel(3600) as clock:
            return clock.now()

    assert timedelta(hours=1) <= Actor(ahead).result() - start < timedelta(hours=2)


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"queue": ""}, {"until": 5}, {"now": 5}])
def test_bad_arguments_are_refused(arguments):
    with pytest.raises((InvalidValue, InvalidType)):
        drain(**arguments)


@pytest.mark.parametrize(("how", "outcome"), [("snooze", "snoozed"), ("discard", "discarded"), ("retry", "retry")])
def test_a_drain_says_how_a_job_asked_to_end(how, outcome):
    from tests.app import tasks

    result = tasks.asks.enqueue(how)
    drained = drain()
    assert [run.outcome for run in drained.runs] == [outcome]
    assert drained.failed == (how == "retry")
    assert state(int(result.id)) == ("CANCELED" if how == "discard" else "READY")
    assert drain(until=timedelta(minutes=3), limit=1).ran == (how != "discard")
