"""Retry, Snooze and Discard: what a job that raises one of them leaves in status, attempts, history, log and counts."""

import copy
import pickle
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import DataError, connection

from jobqueue import enqueue, enqueue_many, handler, signals
from jobqueue.exceptions import BatchErrors, Discard, InvalidType, InvalidValue, LeaseLost, Retry, Snooze
from jobqueue.models import Job, JobAttempt
from jobqueue.requested import requested_by
from jobqueue.signals import attempt_ended
from jobqueue.transitions import ack, cancel, claim, fail, retry, snooze
from jobqueue.transitions.releasing import end_as_requested
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.monitor.recovery import _end_as_requested
from jobqueue.worker.run.batch import calls_of
from jobqueue.worker.run.perform import Run, perform
from jobqueue.worker.run.timeouts import Watch
from jobqueue.worker.shared.scoreboard import LeaseSlot
from tests.app import tasks
from tests.app.models import Ticket
from tests.factories import claim_one, job, make_job, now, run_lease, seconds_from_now, set_columns, state, was_ahead
from tests.marks import committed

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]


@pytest.fixture
def told():
    """What attempt_ended, job_snoozed and lease_lost said."""
    said = []

    def ended(outcome, delay_seconds, **_):
        said.append((str(outcome), delay_seconds))

    def snoozed(delay_seconds, **_):
        said.append(("job_snoozed", delay_seconds))

    def lost(**_):
        said.append("lease_lost")

    attempt_ended.connect(ended)
    signals.job_snoozed.connect(snoozed)
    signals.lease_lost.connect(lost)
    yield said
    attempt_ended.disconnect(ended)
    signals.job_snoozed.disconnect(snoozed)
    signals.lease_lost.disconnect(lost)


def run_all(queue="q"):
    """Run what is due in `queue` as a worker does; what was counted."""
    counts = SimpleNamespace(finished=0, failed=0, lost=0, snoozed=0, discarded=0)
    for call in calls_of(claim(queue, 100, worker="w"))[0]:
        if len(call) > 1 or call[0].task is None:
            outcomes = perform(call, Run(LeaseSlot(), Watch(), lambda: False))
        else:
            outcomes = [run_lease(call[0])]
        assert settle(outcomes, counts) == []
    return vars(counts)


def history(job_id):
    return list(JobAttempt.objects.filter(job_id=job_id).order_by("id").values_list("attempt", "cause", "error_class"))


TASKS = [tasks.asks, tasks.asks_as_a_coroutine, tasks.asks_inside_finish]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.func.__name__)
def test_a_snooze_uses_no_attempt_and_is_its_own_outcome(task, told):
    job_id = int(task.using(queue_name="q").enqueue("snooze").id)
    counts = run_all()
    found = job(job_id)
    assert (state(job_id), found.attempts, found.wait_reason, found.last_error) == ("READY", 0, "snoozed", None)
    assert 100 < seconds_from_now(found.run_at) < 121
    assert history(job_id) == [(1, "snoozed", "jobqueue.exceptions.Snooze")]
    assert counts == {"finished": 1, "failed": 0, "lost": 0, "snoozed": 1, "discarded": 0}
    assert told == [("job_snoozed", 120), ("snoozed", 120)]
    assert not Ticket.objects.exists()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.func.__name__)
def test_a_discard_cancels_the_job_and_keeps_the_reason(task, told):
    result = task.using(queue_name="q").enqueue("discard")
    counts = run_all()
    found = job(int(result.id))
    assert (state(found.pk), found.attempts, found.last_error, found.cause) == (
        "CANCELED", 0, "the order was deleted", None,
    )  # fmt: skip
    assert history(found.pk) == [(1, "discarded", "jobqueue.exceptions.Discard")]
    assert counts == {"finished": 1, "failed": 0, "lost": 0, "snoozed": 0, "discarded": 1}
    assert told == [("discarded", None)]
    assert not Ticket.objects.exists()
    result.refresh()
    (error,) = result.errors
    assert (error.exception_class_path, error.traceback) == ("jobqueue.exceptions.Discard", "the order was deleted")


@pytest.mark.parametrize("task", TASKS[:2], ids=lambda task: task.func.__name__)
def test_a_retry_is_a_failed_attempt_whatever_the_rules_say(task, told):
    job_id = int(task.using(queue_name="q").enqueue("retry").id)
    begun = now()
    counts = run_all()
    assert (state(job_id), job(job_id).attempts) == ("READY", 1)
    assert was_ahead(job(job_id).run_at, 29, 31, since=begun)
    Job.objects.update(run_at=job(job_id).created_at)
    run_all()
    assert (state(job_id), job(job_id).attempts) == ("FAILED", 2), "max_attempts holds"
    assert [kind for _, _, kind in history(job_id)] == ["jobqueue.exceptions.Retry"] * 2
    assert counts == {"finished": 1, "failed": 1, "lost": 0, "snoozed": 0, "discarded": 0}
    assert told == [("retry", 30), ("dead", None)]


def test_a_retry_without_seconds_waits_for_the_back_off():
    job_id = int(tasks.asks.using(queue_name="q", backoff=1000).enqueue("back-off").id)
    run_all()
    assert 700 < seconds_from_now(job(job_id).run_at) < 1201


def test_each_job_of_a_batch_has_its_own_end(told):
    ids = enqueue_many("q", [{"n": n} for n in range(4)])

    @handler("q", batch=10)
    def load(leases):
        raise BatchErrors({ids[0]: Retry(30), ids[1]: Snooze(60), ids[2]: Discard("gone")})

    counts = run_all()
    assert [state(job_id) for job_id in ids] == ["READY", "READY", "CANCELED", "DONE"]
    assert [job(job_id).attempts for job_id in ids] == [1, 0, 0, 0]
    assert counts == {"finished": 4, "failed": 1, "lost": 0, "snoozed": 1, "discarded": 1}


def test_a_batch_that_raises_snooze_snoozes_all_of_its_jobs_and_a_discard_is_decided_alone():
    ids = enqueue_many("q", [{"n": n} for n in range(2)])
    raised = [Snooze(0), Discard("which one?")]

    @handler("q", batch=10)
    def load(leases):
        if raised and len(leases) > 1:
            raise raised.pop(0)
        if leases[0].job_id == ids[0]:
            raise Discard("this one")

    run_all()
    assert [(state(job_id), job(job_id).attempts) for job_id in ids] == [("READY", 0)] * 2
    run_all()
    assert [(state(job_id), job(job_id).attempts) for job_id in ids] == [("READY", 1)] * 2
    Job.objects.update(run_at=job(ids[0]).created_at)
    run_all()
    assert [state(job_id) for job_id in ids] == ["CANCELED", "DONE"]


def test_a_raw_handler_may_raise_them_too():
    @handler("q")
    def deliver(payload):
        raise Snooze(timedelta(minutes=1))

    job_id = enqueue("q", {})
    assert run_all()["snoozed"] == 1
    assert (state(job_id), job(job_id).attempts) == ("READY", 0)


def by_snooze(lease):
    snooze(lease, delay_seconds=60)


def by_fail(lease):
    fail(lease, error="boom", delay_seconds=60)


@pytest.mark.parametrize(
    ("verb", "outcome", "now"), [(by_snooze, "snoozed", "READY"), (by_fail, "retry", "READY"), (ack, "ok", "DONE")]
)
@pytest.mark.parametrize("batch", [None, 10])
def test_a_lease_that_the_job_has_settled_itself_is_not_counted_as_lost(verb, outcome, now, batch, told):
    if batch:

        @handler("q", batch=batch)
        def load(leases):
            for lease in leases:
                verb(lease)
    else:
        from jobqueue import current_job

        @handler("q")
        def deliver(payload):
            verb(current_job().lease)

    job_id = enqueue("q", {})
    counts = run_all()
    assert state(job_id) == now
    assert (counts["finished"], counts["lost"]) == (1, 0)
    assert [said[0] for said in told] == [outcome], "lease_lost was not sent"


@pytest.mark.parametrize(("error", "name"), [(Snooze(60), "READY"), (Discard("gone"), "CANCELED")])
def test_an_end_that_an_earlier_try_has_committed_is_not_lost(error, name):
    make_job()
    lease = claim_one()
    end_as_requested(lease, requested_by(error))
    assert end_as_requested(lease, requested_by(error), again=True) is Job.Status[name]
    assert len(history(lease.job_id)) == 1


def test_a_job_that_snoozes_for_days_keeps_one_row_of_its_snoozes():
    job_id = make_job()
    for _ in range(3):
        lease = claim_one()
        end_as_requested(lease, requested_by(Snooze(0)))
    assert history(job_id) == [(1, "snoozed", "jobqueue.exceptions.Snooze")]
    assert JobAttempt.objects.get().fence == lease.fence


def test_a_job_that_was_asked_to_cancel_does_not_snooze():
    make_job()
    lease = claim_one()
    cancel(lease.job_id)
    assert end_as_requested(lease, requested_by(Snooze(60))) is Job.Status.CANCELED
    assert state(lease.job_id) == "CANCELED"


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize("given", [-1, float("nan"), float("inf"), "soon", 10**12])
def test_a_delay_that_cannot_be_is_refused(kind, given):
    with pytest.raises(InvalidValue, match="between 0 and"):
        kind(given)


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize("given", [True, [], b"5"])
def test_a_delay_that_is_no_duration_is_refused(kind, given):
    with pytest.raises(InvalidType, match="a number of seconds"):
        kind(given)


def test_the_reason_of_a_discard_is_text():
    with pytest.raises(InvalidType, match="must be a str"):
        Discard(5)
    assert str(Discard(" ")) == "discarded without a reason"


@pytest.mark.parametrize("how", ["snooze", "discard"])
def test_an_end_that_a_dead_process_had_no_time_to_write_is_written_by_the_monitor(how):
    job_id = int(tasks.asks.using(queue_name="q").enqueue(how).id)
    (lease,) = claim("q", worker="w")
    slot = LeaseSlot()
    run_lease(lease).note_on(slot)
    _end_as_requested(lease, slot)
    found = job(job_id)
    assert (state(job_id), found.attempts) == ({"snooze": "READY", "discard": "CANCELED"}[how], 0)
    assert found.last_error == {"snooze": None, "discard": "the order was deleted"}[how]
    assert how == "discard" or 100 < seconds_from_now(found.run_at) < 121


def test_a_discarded_job_that_was_retried_and_then_canceled_is_not_shown_as_discarded():
    result = tasks.asks.using(queue_name="q").enqueue("discard")
    run_all()
    assert retry(int(result.id))
    assert (job(int(result.id)).last_error, job(int(result.id)).cause) == (None, None)
    assert cancel(int(result.id))
    result.refresh()
    assert [error.exception_class_path for error in result.errors] == ["jobqueue.exceptions.JobCanceled"]


def test_an_expired_job_that_was_retried_and_then_canceled_is_not_shown_as_expired():
    result = tasks.asks.using(queue_name="q", expires=60).enqueue("discard")
    set_columns(int(result.id), expires_at=now())
    assert claim("q", worker="w") == []
    assert (state(int(result.id)), job(int(result.id)).cause) == ("CANCELED", "expired")
    assert retry(int(result.id))
    assert cancel(int(result.id))
    result.refresh()
    assert [error.exception_class_path for error in result.errors] == ["jobqueue.exceptions.JobCanceled"]


class Later(Snooze):
    """A project's own."""

    def __init__(self, order_id):
        super().__init__("5m")
        self.order_id = order_id


@pytest.mark.parametrize(
    "error",
    [Retry(), Retry(30), Snooze("5m"), Discard("gone"), Later(7), LeaseLost(7), BatchErrors({7: ValueError("x")})],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_our_exceptions_are_the_same_after_a_copy_and_in_another_process(error, again):
    found = again(error)
    assert (type(found), str(found), found.args) == (type(error), str(error), error.args)
    assert {name: str(value) for name, value in vars(found).items()} == {n: str(v) for n, v in vars(error).items()}


@pytest.fixture
def refuses_logs():
    """The database refuses every statement that has this log."""

    def refuse(execute, sql, params, many, context):
        if any("a log it refuses" in str(value) for value in params or ()):
            raise DataError("this log cannot be stored")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        yield "a log it refuses"


def end_with(log, outcome):
    outcome.log = log
    counts = SimpleNamespace(finished=0, failed=0, lost=0, snoozed=0, discarded=0)
    assert settle([outcome], counts) == []
    return {name: number for name, number in vars(counts).items() if number}


def test_a_snooze_whose_log_is_refused_is_still_a_snooze(refuses_logs):
    job_id = int(tasks.asks.using(queue_name="q").enqueue("snooze").id)
    assert end_with(refuses_logs, run_lease(claim_one())) == {"finished": 1, "snoozed": 1}
    assert (state(job_id), job(job_id).attempts, job(job_id).wait_reason) == ("READY", 0, "snoozed")
    assert 100 < seconds_from_now(job(job_id).run_at) < 121


def test_a_discard_whose_log_is_refused_does_not_run_again(refuses_logs):
    job_id = int(tasks.asks.using(queue_name="q").enqueue("discard").id)
    assert end_with(refuses_logs, run_lease(claim_one())) == {"finished": 1, "discarded": 1}
    assert (state(job_id), job(job_id).attempts) == ("CANCELED", 0)
    assert "could not be stored: DataError" in job(job_id).last_error


def test_a_failure_whose_log_is_refused_moves_its_job_all_the_same(refuses_logs):
    job_id = int(tasks.boom.using(queue_name="q", move_after=1, move_to="slow", max_attempts=5).enqueue().id)
    assert end_with(refuses_logs, run_lease(claim_one())) == {"finished": 1, "failed": 1}
    assert (state(job_id), job(job_id).queue, job(job_id).attempts) == ("READY", "slow", 1)


class Unready(Snooze):
    """A project's own, which has not called the constructor of Snooze: it does not say when."""

    def __init__(self, order_id):
        self.order_id = order_id


def test_a_snooze_that_does_not_say_when_is_a_failed_attempt():
    @handler("q")
    def deliver(payload):
        raise Unready(7)

    job_id = enqueue("q", {})
    (outcome,) = perform(claim("q", worker="w"), Run(LeaseSlot(), Watch(), lambda: False))
    outcome.note_on(LeaseSlot())
    assert end_with(None, outcome) == {"finished": 1, "failed": 1}
    assert (state(job_id), job(job_id).attempts) == ("READY", 1)
