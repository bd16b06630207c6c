"""The retry policy of a task: tables, Retry-After, retry_until_seconds, move_after."""

import email.utils
from datetime import datetime, timedelta
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from django.db import transaction
from django.test import override_settings

from jobqueue import signals, task
from jobqueue.backoff import RETRY_AFTER_MAX, Backoff, retry_after, wait_seconds
from jobqueue.base.compat import InvalidTask
from jobqueue.exceptions import InvalidType, InvalidValue, JobLost, Retry, Snooze
from jobqueue.models import Job, JobAttempt
from jobqueue.transitions import cancel, claim, fail, fail_many, reap, retry, snooze
from jobqueue.transitions.alone import claim_alone
from jobqueue.transitions.redriving import retry_locked
from jobqueue.worker.child.outcomes import settle
from tests.factories import (
    expire,
    job,
    make_due,
    make_job,
    now,
    run_lease,
    seconds_from_now,
    set_columns,
    state,
    was_ahead,
)
from tests.failures.raising import raised
from tests.failures.real.web import CLIENTS
from tests.failures.server import serve
from tests.marks import committed

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]


class Middle:
    """Draws the middle of every range."""

    def uniform(self, a, b):
        return (a + b) / 2


def raises():
    CALLS.append(1)
    raise ERRORS.pop(0) if ERRORS else ValueError("boom")


ERRORS = []
CALLS = []


def made(**fields):
    ERRORS.clear()
    return task(queue_name="q", **fields)(raises)


def run_one(queue="q"):
    (lease,) = claim(queue, worker="w")
    assert settle([run_lease(lease)], counts()) == []
    return lease


def counts():
    return SimpleNamespace(finished=0, failed=0, lost=0, snoozed=0, discarded=0)


def aged(job_id, seconds):
    """Let the job be as it would be so much later."""
    found = job(job_id)
    options = dict(found.options or {})
    if options.get("first_due", [None])[0] is not None:
        instant, attempts = options["first_due"]
        options["first_due"] = [(datetime.fromisoformat(instant) - timedelta(seconds=seconds)).isoformat(), attempts]
    earlier = {name: getattr(found, name) - timedelta(seconds=seconds) for name in ("run_at", "created_at")}
    set_columns(job_id, options=options or None, **earlier)


@pytest.mark.parametrize(("failures", "seconds"), [(1, 5), (2, 30), (3, 300), (4, 300), (50, 300)])
def test_the_last_value_of_a_table_repeats(failures, seconds):
    assert wait_seconds((5, "30s", timedelta(minutes=5)), failures, ValueError(), rng=Middle()) == seconds


def test_a_job_waits_as_its_table_says_also_when_using_gave_it():
    for one in (made(backoff=[1000, 3000]), made().using(backoff=(1000, 3000))):
        job_id, begun = int(one.enqueue().id), now()
        run_one()
        assert was_ahead(job(job_id).run_at, 799, 1201, since=begun)
        make_due(job_id)
        begun = now()
        run_one()
        assert was_ahead(job(job_id).run_at, 2399, 3601, since=begun)


def test_a_function_may_have_the_form_proposed_for_django_tasks():
    seen = []

    def wait(exception, task_result):
        seen.append((exception, task_result))
        return timedelta(seconds=500)

    ERRORS.append(error := KeyError("x"))
    one = task(queue_name="q", backoff=wait)(raises)
    result, begun = one.enqueue(), now()
    run_one()
    assert was_ahead(job(int(result.id)).run_at, 499, 501, since=begun)
    ((exception, task_result),) = seen
    assert exception is error
    assert (task_result.id, task_result.attempts) == (result.id, 1)
    assert task_result.errors[-1].exception_class_path == "builtins.KeyError"


@pytest.fixture(scope="module")
def busy():
    """Raises what a client raises when a server answers 429 with these headers."""
    with serve() as url:

        def http_error(value, *, date=None, client="requests"):
            if client in ("httpx", "aiohttp"):
                pytest.importorskip(client, reason="the extra test has it")
            headers = {"Retry-After": value} | ({"Date": date} if date else {})
            return raised(lambda: CLIENTS[client](f"{url}/429?{urlencode(headers)}"))

        yield http_error


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("value", "seconds"),
    [("120", 120), (" 7 ", 7), ("-5", None), ("0", 0), ("soon", None), ("9" * 400, RETRY_AFTER_MAX), ("", None)],
)
def test_the_seconds_of_retry_after_are_bounded_and_never_negative(busy, client, value, seconds):
    assert retry_after(busy(value, client=client)) == seconds


@pytest.mark.parametrize("client", CLIENTS)
def test_a_date_is_compared_with_the_clock_of_the_service(busy, client):
    at, then = now(), email.utils.format_datetime
    ahead = at + timedelta(hours=5)
    assert retry_after(busy(then(ahead + timedelta(seconds=90)), date=then(ahead), client=client)) == 90
    found = retry_after(busy(then(at + timedelta(seconds=90)), client=client))
    # It has whole seconds, and the clock goes on meanwhile.
    assert 88 - (now() - at).total_seconds() < found < 92
    assert retry_after(busy(then(at - timedelta(hours=1)), client=client)) == 0


def test_the_error_that_another_was_raised_from_is_asked_too(busy):
    outer = ValueError("not charged")
    outer.__cause__ = busy("60")
    assert retry_after(outer) == 60
    assert retry_after(ValueError()) is None


def test_a_job_waits_for_the_longer_of_its_back_off_and_what_the_service_asks_for(busy):
    one = made(backoff=1)
    ERRORS.extend([busy("600"), busy("0")])
    job_id = int(one.enqueue().id)
    begun = now()
    run_one()
    assert was_ahead(job(job_id).run_at, 599, 601, since=begun)
    make_due(job_id)
    begun = now()
    run_one()
    assert was_ahead(job(job_id).run_at, 0.8, 2, since=begun)


def test_no_retry_begins_later_than_retry_until_seconds_after_the_job_fell_due():
    one = made(backoff=Backoff(100, 1, 100, 0), retry_until_seconds="250s", max_attempts=50)
    job_id = int(one.enqueue().id)
    aged(job_id, 10)
    run_one()
    assert state(job_id) == "READY"
    make_due(job_id)
    run_one()
    assert state(job_id) == "READY", "what counts is when it fell due, not the clock of the last attempt"
    ERRORS.append(Retry(1000))
    make_due(job_id)
    run_one()
    assert (state(job_id), job(job_id).attempts) == ("FAILED", 3)


def test_a_retry_that_would_begin_too_late_ends_the_job_with_its_last_cause():
    said = []

    def dead(cause, **_):
        said.append(cause)

    one = made(backoff=0, retry_until_seconds=100, max_attempts=50)
    job_id = int(one.enqueue().id)
    aged(job_id, 90)
    run_one()
    assert state(job_id) == "READY"
    # It waits for a worker.
    aged(job_id, 11)
    signals.job_dead.connect(dead)
    try:
        run_one()
    finally:
        signals.job_dead.disconnect(dead)
    found = job(job_id)
    assert (state(job_id), found.attempts, found.cause) == ("FAILED", 1, "data")
    assert "ValueError: boom" in found.last_error
    assert said == ["data"]
    assert JobAttempt.objects.filter(job_id=job_id).count() == 1


def test_a_retry_by_hand_begins_a_new_time():
    one = made(backoff=0, retry_until_seconds=100, max_attempts=5)
    job_id = int(one.enqueue().id)
    aged(job_id, 90)
    run_one()
    aged(job_id, 11)
    run_one()
    assert state(job_id) == "FAILED"
    assert retry(job_id)
    run_one()
    assert (state(job_id), job(job_id).attempts) == ("READY", 2)


def test_a_job_that_waits_for_a_worker_after_a_retry_by_hand_is_run():
    one = made(max_attempts=1, retry_until_seconds=60)
    ids = [int(one.enqueue().id) for _ in range(2)]
    for _ in ids:
        run_one()
    assert retry(ids[0])
    with transaction.atomic():
        redriven = list(Job.objects.select_for_update().filter(pk=ids[1]))
        assert len(retry_locked(redriven, using="default")) == 1
    for job_id in ids:
        aged(job_id, 61)
        CALLS.clear()
        run_one()
        assert (CALLS, state(job_id), job(job_id).attempts) == ([1], "FAILED", 2)


def test_a_redrive_begins_a_new_time_and_keeps_the_other_options():
    one = made(max_attempts=2, backoff=0, retry_until_seconds=60).using(move_after=1, move_to="slow")
    job_id = int(one.enqueue().id)
    run_one()
    aged(job_id, 61)
    run_one("slow")
    with transaction.atomic():
        retry_locked(list(Job.objects.select_for_update().filter(pk=job_id)), using="default")
    found = job(job_id).options
    instant, attempts = found["first_due"]
    assert (attempts, found["move_to"]) == (1, "slow")
    assert abs(seconds_from_now(datetime.fromisoformat(instant))) < 60


def test_a_job_that_is_run_alone_after_its_time_is_run():
    one = made(backoff=0, retry_until_seconds=150, max_attempts=3)
    job_id = int(one.enqueue().id)
    run_one()
    aged(job_id, 151)
    run_one()
    assert (state(job_id), job(job_id).attempts) == ("FAILED", 1)
    lease = claim_alone(job_id, worker="w")
    CALLS.clear()
    assert settle([run_lease(lease)], counts()) == []
    assert (CALLS, state(job_id), job(job_id).attempts) == ([1], "FAILED", 2)


def test_a_retry_by_hand_of_a_job_that_was_held_after_a_crash_begins_a_new_time():
    one = made(backoff=0, retry_until_seconds=100, max_attempts=5, on_crash="hold")
    job_id = int(one.enqueue().id)
    run_one()
    assert fail_many(claim("q", worker="w"), error=JobLost("killed")) == []
    aged(job_id, 1000)
    assert retry(job_id)
    CALLS.clear()
    run_one()
    assert (CALLS, state(job_id), job(job_id).attempts) == ([1], "READY", 3)


def test_a_retry_by_hand_of_a_job_that_was_snoozed_and_canceled_begins_a_new_time():
    one = made(backoff=0, retry_until_seconds=100, max_attempts=5)
    ERRORS.append(Snooze(0))
    job_id = int(one.enqueue().id)
    run_one()
    aged(job_id, 1000)
    assert cancel(job_id)
    assert retry(job_id)
    run_one()
    assert (state(job_id), job(job_id).attempts) == ("READY", 1)


def test_crashes_do_not_prolong_the_time_for_retries():
    one = made(retry_until_seconds=100, max_attempts=20)
    job_id = int(one.enqueue().id)
    for _ in range(3):
        assert fail_many(claim("q", worker="w"), error=JobLost("killed")) == []
        aged(job_id, 40)
        make_due(job_id)
    assert (state(job_id), job(job_id).attempts) == ("READY", 3)
    run_one()
    assert (state(job_id), job(job_id).attempts, job(job_id).cause) == ("FAILED", 3, "lost")


def test_a_job_that_was_put_back_before_its_first_run_has_no_more_time_for_retries():
    one = made(backoff=0, retry_until_seconds=100, max_attempts=9)
    job_id = int(one.enqueue().id)
    for _ in range(3):
        (lease,) = claim("q", worker="w")
        snooze(lease, delay_seconds=0)
        aged(job_id, 40)
    run_one()
    assert (state(job_id), job(job_id).attempts) == ("FAILED", 1), "its first attempt ran, and no retry may follow"


def test_the_time_of_a_job_that_is_to_run_later_begins_then():
    one = made(backoff=0, retry_until_seconds=100, max_attempts=9)
    job_id = int(one.using(run_after=now() + timedelta(hours=1)).enqueue().id)
    make_due(job_id)
    run_one()
    assert state(job_id) == "READY"


def test_a_row_of_plain_sql_has_its_time_from_its_first_failure_on():
    one = made(backoff=0, retry_until_seconds=100, max_attempts=9)
    job_id = make_job("q", {"args": [], "kwargs": {}}, task=one.module_path, run_at=now() - timedelta(seconds=90))
    run_one()
    assert state(job_id) == "READY"
    instant, attempts = job(job_id).options["first_due"]
    assert attempts == 0
    late = datetime.fromisoformat(instant) - timedelta(seconds=20)
    set_columns(job_id, options={"first_due": [late.isoformat(), 0]}, created_at=late)
    run_one()
    assert (state(job_id), job(job_id).attempts) == ("FAILED", 1)


def test_a_snooze_does_not_prolong_the_time_for_retries():
    one = made(backoff=0, retry_until_seconds=100, max_attempts=5)
    ERRORS.append(Snooze(0))
    job_id = int(one.enqueue().id)
    aged(job_id, 101)
    run_one()
    assert (state(job_id), job(job_id).attempts) == ("READY", 0)
    run_one()
    assert (state(job_id), job(job_id).attempts) == ("FAILED", 1), "its first attempt ran, and no retry may follow"


def test_a_retry_that_snoozed_continues_after_the_time_for_retries():
    one = made(backoff=0, retry_until_seconds=1000, max_attempts=5)
    ERRORS.extend([KeyError("x"), Snooze(0), ZeroDivisionError("its own end")])
    job_id = int(one.enqueue().id)
    run_one()
    run_one()
    found = job(job_id)
    assert (found.attempts, found.wait_reason) == (1, "snoozed")
    long_ago = found.created_at - timedelta(seconds=2000)
    set_columns(job_id, created_at=long_ago, options=found.options | {"first_due": [long_ago.isoformat(), 0]})
    run_one()
    assert (state(job_id), job(job_id).attempts) == ("FAILED", 2), "no other retry follows"
    assert "its own end" in job(job_id).last_error


def test_a_job_moves_to_another_queue_after_some_failures():
    one = made(backoff=0, move_after=2, move_to="slow", max_attempts=4)
    job_id = int(one.enqueue().id)
    run_one()
    assert job(job_id).queue == "q"
    run_one()
    assert job(job_id).queue == "slow"
    run_one("slow")
    run_one("slow")
    assert (state(job_id), job(job_id).queue) == ("FAILED", "slow")


def test_a_job_stays_where_it_is_while_the_other_queue_has_its_dedupe_key():
    one = made(backoff=0, move_after=1, move_to="slow", max_attempts=4)
    other = int(one.using(queue_name="slow", dedupe_key="k").enqueue().id)
    job_id = int(one.using(dedupe_key="k").enqueue().id)
    assert other != job_id
    run_one()
    assert (job(job_id).queue, job(job_id).attempts, state(job_id)) == ("q", 1, "READY")
    assert JobAttempt.objects.filter(job_id=job_id).count() == 1


def test_a_snooze_does_not_move_the_job():
    one = made(move_after=1, move_to="slow", max_attempts=4)
    ERRORS.append(Snooze(0))
    job_id = int(one.enqueue().id)
    run_one()
    assert (job(job_id).queue, job(job_id).attempts) == ("q", 0)


def test_a_policy_that_cannot_work_is_refused_with_the_name_of_the_task():
    for fields, words in [
        ({"backoff": ()}, "empty table"),
        ({"backoff": (1, -1)}, "at least 0"),
        ({"move_after": 3, "move_to": "slow", "max_attempts": 3}, "before they move"),
        ({"move_after": 3}, "move_to is missing"),
        ({"move_after": 3, "move_to": "q"}, "own queue"),
        ({"retry_on": KeyError, "no_retry_on": LookupError}, "nothing is retried"),
        ({"retry_until_seconds": 70, "backoff": 100}, "no retry begins so early: the first wait is at least 80 s"),
        ({"retry_until_seconds": 70, "backoff": (100, 1)}, "no retry begins so early"),
        ({"retry_until_seconds": 70, "backoff": Backoff(100)}, "no retry begins so early"),
    ]:
        with pytest.raises(InvalidValue, match=rf"test_retry_policy\.raises: .*{words}"):
            made(**fields)
    with pytest.raises(InvalidType, match=r"test_retry_policy\.raises: backoff must be"):
        made(backoff=True)
    with pytest.raises(InvalidValue, match="ordering_key"):
        made(move_after=3, move_to="slow").using(ordering_key="k")


def test_a_queue_to_move_to_that_is_not_declared_is_refused():
    backends = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": ["q"]}}
    with (
        override_settings(TASKS=backends),
        pytest.raises(InvalidTask, match=r"move_to is 'slow', which is not in"),
    ):
        made(move_after=3, move_to="slow")


def test_a_reaped_job_is_given_up_too_late_as_well():
    one = made(backoff=0, retry_until_seconds=50, max_attempts=5)
    job_id = int(one.enqueue().id)
    aged(job_id, 100)
    (lease,) = claim("q", worker="w")
    expire(job_id)
    assert reap().requeued == 1
    run_one()
    assert (state(job_id), job(job_id).attempts, job(job_id).cause) == ("FAILED", 1, "lost")
    with pytest.raises(Exception, match="lease ended"):
        fail(lease, error="late")
