"""What @task knows beside Django's fields: keys, expiry, retry rules, versions, aliases."""

import logging
import types
from datetime import UTC, datetime, timedelta

import pytest

from jobqueue import task
from jobqueue.backoff import Backoff
from jobqueue.base.compat import TaskResultStatus
from jobqueue.conf.task_spec import OPTIONS, TaskFields, UsingFields
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidValue, JobExpired, JobQueueError
from jobqueue.models import Job, JobAttempt
from jobqueue.signals import job_canceled
from jobqueue.tasks import registry
from jobqueue.tasks.options import may_retry, options_of
from jobqueue.transitions import claim, retry
from jobqueue.transitions.claiming.claimer import Claimer
from jobqueue.worker.run.timeouts import Limits, limits_of
from tests.app import tasks
from tests.factories import claim_one, job, make_due, now, seconds_from_now, set_columns, settle_run, state
from tests.marks import committed
from tests.memories import forget_tasks

pytestmark = pytest.mark.django_db


def first_argument(name, count):
    return None if name == "nobody" else f"{name}-{count}"


def test_a_dedupe_key_may_be_a_function_of_the_arguments():
    keyed = tasks.greet.using(dedupe_key=first_argument)
    first = keyed.enqueue("ann", count=1)
    assert bytes(job(first.id).dedupe_key) == b"ann-1"
    assert keyed.enqueue("ann", count=1).id == first.id
    assert keyed.enqueue("ann", count=2).id != first.id
    assert keyed.enqueue("nobody", 1).id != keyed.enqueue("nobody", 1).id


def test_a_function_that_gives_no_key_is_refused_and_nothing_is_written():
    with pytest.raises(JobQueueError):
        tasks.greet.using(dedupe_key=lambda name, count: 5).enqueue("ann", 1)
    with pytest.raises(ZeroDivisionError):
        tasks.greet.using(dedupe_key=lambda name, count: 1 / 0).enqueue("ann", 1)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"expires": 0},
        {"expires": -1.0},
        {"expires": timedelta(0)},
        {"expires": "1h"},
        {"retry_on": ()},
        {"retry_on": (ValueError(),)},
        {"no_retry_on": int},
        {"no_retry_on": "ValueError"},
        {"backoff": -1},
        {"backoff": True},
        {"backoff": "5s"},
        {"backoff": ("soon",)},
        {"backoff": ()},
        {"backoff": (5, -1)},
        {"retry_until_seconds": 0},
        {"move_after": 2},
        {"move_to": "slow"},
        {"move_after": 5, "move_to": "slow", "max_attempts": 5},
        {"move_after": 2, "move_to": "slow", "ordering_key": "k"},
        {"move_after": 2, "move_to": "default"},
        {"move_after": 0, "move_to": "slow"},
        {"retry_on": KeyError, "no_retry_on": LookupError},
        {"backoff": Backoff},
        {"version": 0},
        {"version": "2"},
        {"aliases": "old.path"},
        {"aliases": ["not a path"]},
        {"aliases": ["x." * 200 + "y"]},
        {"dedupe_key": 5},
        {"retries": 3},
    ],
    ids=str,
)
def test_a_bad_field_is_refused_by_the_decorator(fields):
    with pytest.raises((JobQueueError, TypeError)):
        task(**fields)(tasks.greet.func)
    assert registry.find_task("tests.app.tasks.greet") is tasks.greet


def test_the_table_has_the_options_that_the_decorator_and_using_take():
    of_django = {"queue_name", "priority", "backend"}
    assert {*TaskFields.__annotations__} - of_django == {*OPTIONS}
    assert {*UsingFields.__annotations__} - {*TaskFields.__annotations__} == {"run_after"}


def test_using_refuses_what_belongs_to_the_decorator():
    with pytest.raises(TypeError, match="version"):
        tasks.greet.using(version=2)


def test_a_task_with_every_field_can_be_hashed():
    every = tasks.greet.using(retry_on=[ValueError], no_retry_on=KeyError, expires=5, backoff=1, dedupe_key="k")
    assert hash(every)
    assert every.retry_on == (ValueError,)


# expires


def test_seconds_count_from_the_moment_the_job_is_due():
    soon = tasks.greet.using(expires=600).enqueue("ann", 1)
    assert 540 < seconds_from_now(job(soon.id).expires_at) <= 600
    later = tasks.greet.using(expires=timedelta(minutes=1), run_after=now() + timedelta(hours=1)).enqueue("ann", 1)
    assert 3610 < seconds_from_now(job(later.id).expires_at) <= 3660
    instant = now() + timedelta(minutes=5)
    exact = tasks.greet.using(expires=instant).enqueue("ann", 1)
    assert job(exact.id).expires_at == instant


def test_an_end_beyond_the_calendar_is_refused_and_nothing_is_written():
    last = datetime(9998, 12, 31, tzinfo=UTC)
    for many in (2, 400):
        with pytest.raises(InvalidValue, match="expires"):
            tasks.greet.using(run_after=last, expires=timedelta(days=many)).enqueue("ann", 1)
    assert not Job.objects.exists()


def expired(**columns):
    job_id = int(tasks.greet.using(expires=60).enqueue("ann", 1).id)
    set_columns(job_id, expires_at=UtcNowPlus(-1), **columns)
    return job_id


def test_an_expired_job_is_canceled_by_the_claim_that_meets_it():
    gone, told = expired(), []
    receive = lambda **facts: told.append(facts["job_id"])  # noqa: E731
    job_canceled.connect(receive)
    try:
        assert claim("default", worker="w") == []
    finally:
        job_canceled.disconnect(receive)
    ended = job(gone)
    # Where a claim is one statement, the job was taken before anybody could see that it is late.
    fence = int(vendor("default").has_update_returning)
    assert (state(gone), ended.cause, ended.attempts, ended.fence) == ("CANCELED", "expired", 0, fence)
    assert ended.finished_at is not None
    assert told == [gone]
    result = tasks.greet.get_result(str(gone))
    assert (result.status, result.errors[-1].exception_class) == (TaskResultStatus.FAILED, JobExpired)


def test_a_claim_gets_the_live_jobs_behind_expired_ones_in_order():
    gone = [expired() for _ in range(7)]
    live = [int(tasks.greet.enqueue("bob", n).id) for n in range(3)]
    low = int(tasks.greet.using(priority=-5).enqueue("bob", 4).id)
    assert [lease.job_id for lease in claim("default", limit=2, worker="w")] == live[:2]
    assert {state(job_id) for job_id in gone} == {"CANCELED"}
    more = expired()
    claimer = Claimer("w", "default")
    assert [lease.job_id for lease in claimer.claim("default", 20, lease_seconds=60)] == [live[2], low]
    assert state(more) == "CANCELED"


def test_a_job_that_waits_for_its_retry_expires_too():
    job_id = expired(attempts=1)
    assert claim("default", worker="w") == []
    assert (state(job_id), job(job_id).attempts) == ("CANCELED", 1)


def test_a_retried_job_does_not_expire_again():
    gone = expired()
    claim("default", worker="w")
    assert retry(gone)
    assert claim_one("default").job_id == gone


# retry rules


class TooMany(ConnectionError):
    pass


def attempt_of(error, **fields):
    """Run one failing attempt; the job afterwards."""
    found = tasks.greet.using(**fields).enqueue("ann", 1)
    lease = claim_one("default")
    settle_run(lease, error)
    return job(found.id)


@pytest.mark.parametrize(
    ("error", "fields", "again"),
    [
        (ConnectionError(), {"retry_on": ConnectionError}, True),
        (TooMany(), {"retry_on": (ConnectionError, KeyError)}, True),
        (ValueError(), {"retry_on": ConnectionError}, False),
        (ValueError(), {"no_retry_on": ValueError}, False),
        (KeyError(), {"no_retry_on": ValueError}, True),
        (TooMany(), {"retry_on": ConnectionError, "no_retry_on": TooMany}, False),
        (SystemExit(), {"retry_on": BaseException}, True),
    ],
    ids=str,
)
def test_rules_say_which_errors_are_worth_another_attempt(error, fields, again):
    after = attempt_of(error, **fields)
    assert Job.Status(after.status).name == ("READY" if again else "FAILED")
    assert (after.attempts, JobAttempt.objects.count()) == (1, 1)


def wait_of(backoff, error=None):
    """How long a failed attempt of a task with this back-off waits; the row has nothing of its own."""
    decorated(backoff=backoff).enqueue("ann", 1)
    assert Job.objects.get().options is None
    lease = claim_one("default")
    settle_run(lease, error or ValueError("x"))
    return seconds_from_now(job(lease.job_id).run_at)


def decorated(**fields):
    """tests.app.tasks.greet, as another release decorates it."""
    forget_tasks(["tests.app.tasks.greet"])
    return task(**fields)(tasks.greet.func)


@pytest.mark.parametrize(
    ("backoff", "low", "high"),
    [(1000, 740, 1200), (0, -60, 0), (lambda failures, error: 100 * failures + error.args[0], 240, 300)],
)
def test_the_wait_may_be_a_number_or_a_function(own_registry, backoff, low, high):
    assert low < wait_of(backoff, OSError(200)) <= high


@pytest.mark.parametrize("bad", [lambda *_: 1 / 0, lambda *_: -1, lambda *_: "soon", lambda *_: float("nan")])
def test_a_wait_that_cannot_be_used_is_told_and_the_default_is_taken(own_registry, bad, caplog, settings):
    settings.JOBQUEUE = {"BACKOFF_BASE_SECONDS": 500}
    with caplog.at_level(logging.ERROR):
        assert 340 < wait_of(bad) <= 600
    assert "backoff of task" in caplog.text


# what a job has of its own


def test_using_reaches_the_worker():
    mine = tasks.greet.using(
        backoff=Backoff(100, 1, 100, 0), no_retry_on=TooMany, timeout_seconds=7, hard_timeout_seconds=9, ack_each=True
    )
    mine.enqueue("ann", 1)
    assert Job.objects.get().options == {
        "backoff": [100, 1, 100, 0],
        "no_retry_on": ["tests.tasks.test_task_fields.TooMany"],
        "timeout_seconds": 7,
        "hard_timeout_seconds": 9,
        "ack_each": True,
    }
    options = options_of(tasks.greet, claim_one("default").options)
    assert limits_of(options) == Limits(7, 9)
    assert (options.ack_each, options.backoff) == (True, Backoff(100, 1, 100, 0))
    assert (may_retry(options, TooMany()), may_retry(options, ConnectionError())) == (False, True)


def test_other_fields_leave_nothing_in_the_row():
    tasks.greet.using(priority=3, queue_name="default", dedupe_key="k", max_attempts=2, lease_seconds=5).enqueue("a", 1)
    assert Job.objects.get().options is None


def test_a_job_cannot_carry_a_function():
    with pytest.raises(JobQueueError, match="belongs to @task"):
        tasks.greet.using(backoff=lambda failures, error: 1).enqueue("ann", 1)
    assert not Job.objects.exists()


@committed
@pytest.mark.parametrize("bad", [5, "x", [1], {"retry_on": 5}, {"backoff": "soon"}, {"timeout_seconds": -1}])
def test_options_that_another_program_got_wrong_fail_the_job_as_bad_format(bad):
    set_columns(int(tasks.greet.enqueue("ann", 1).id), options=bad)
    assert run_due().cause == "format"


@committed
def test_an_option_that_is_null_is_not_given():
    set_columns(int(tasks.greet.enqueue("ann", 1).id), options={"timeout_seconds": None, "retry_on": None})
    assert run_due().result == "ann 1"


@committed
def test_options_of_a_later_release_are_left_alone():
    set_columns(int(tasks.greet.enqueue("ann", 1).id), options={"unheard_of": 1})
    assert run_due().result == "ann 1"


# versions and aliases


def stored(payload, path="tests.app.tasks.greet"):
    job_id = int(tasks.greet.enqueue("ann", 1).id)
    set_columns(job_id, payload=payload, task=path)
    return job_id


def run_due():
    lease = claim_one("default")
    settle_run(lease)
    return job(lease.job_id)


@committed
def test_the_first_version_is_not_written_and_later_ones_are(own_registry):
    assert job(tasks.greet.enqueue("ann", 1).id).payload == {"args": ["ann", 1], "kwargs": {}}
    second = decorated(version=2)
    assert job(second.enqueue("ann", 1).id).payload == {"args": ["ann", 1], "kwargs": {}, "version": 2}


@committed
def test_a_payload_of_an_earlier_release_passes_through_the_upcasters(own_registry):
    third = decorated(version=3)
    third.upcaster(from_version=1)(lambda args, kwargs: ([*args, 7], kwargs))
    third.upcaster(from_version=2)(lambda args, kwargs: (args[:1], {**kwargs, "count": args[1] + 1}))
    for payload in ({"args": ["ann"]}, {"args": ["ann"], "kwargs": {}, "version": 1}):
        stored(payload)
        assert run_due().result == "ann 8"
    stored({"args": ["ann", 1], "kwargs": {}, "version": 2})
    assert run_due().result == "ann 2"
    stored({"args": ["ann", 1], "kwargs": {}, "version": 3})
    assert run_due().result == "ann 1"


@committed
def test_a_payload_that_this_code_cannot_read_is_parked(own_registry):
    stored({"args": ["ann", 1], "kwargs": {}, "version": 2})
    after = run_due()
    assert (Job.Status(after.status).name, after.attempts) == ("READY", 0)
    assert 5 < seconds_from_now(after.run_at) < 75
    assert "version 2" in after.wait_reason
    third = decorated(version=3)
    third.upcaster(from_version=1)(lambda args, kwargs: (args, kwargs))
    make_due(after.pk)
    assert "no upcaster from 2" in run_due().wait_reason


@committed
@pytest.mark.parametrize("version", [0, -1, "2", True, 1.5, None])
def test_a_version_that_is_none_fails_the_job_as_bad_format(version):
    stored({"args": ["ann", 1], "kwargs": {}, "version": version})
    assert run_due().cause == "format"


@committed
def test_an_upcaster_that_fails_costs_an_attempt(own_registry):
    second = decorated(version=2)
    second.upcaster(from_version=1)(lambda args, kwargs: args)
    stored({"args": ["ann", 1]})
    after = run_due()
    assert after.attempts == 1
    assert "must return (args, kwargs)" in after.last_error


@pytest.mark.parametrize("from_version", [0, 2, 3, "1"])
def test_an_upcaster_from_no_earlier_version_is_refused(own_registry, from_version):
    second = decorated(version=2)
    with pytest.raises(JobQueueError):
        second.upcaster(from_version)(lambda args, kwargs: (args, kwargs))


@committed
def test_a_job_of_an_earlier_path_is_run_and_read(own_registry):
    renamed = decorated(aliases=["tests.app.old.welcome"])
    job_id = stored({"args": ["ann", 1]}, "tests.app.old.welcome")
    assert run_due().result == "ann 1"
    assert renamed.get_result(str(job_id)).return_value == "ann 1"


def test_using_registers_nothing(own_registry):
    renamed = decorated(aliases=["tests.app.old.welcome"], on_crash="hold")
    renamed.using(timeout_seconds=5)
    assert registry.find_task("tests.app.old.welcome") is renamed


def test_a_task_is_stronger_than_an_alias_and_an_alias_is_of_one_task(own_registry):
    task(aliases=["tests.app.tasks.greet", "tests.app.old.name"])(tasks.add.func)
    assert registry.find_task("tests.app.tasks.greet").func is tasks.greet.func
    with pytest.raises(InvalidValue, match="alias"):
        task(aliases=["tests.app.old.name"])(tasks.greet.func)
    # A module that is loaded again says the same again.
    again = types.FunctionType(tasks.add.func.__code__, {}, "add")
    again.__module__, again.__qualname__ = "tests.app.tasks", "add"
    task(aliases=["tests.app.old.name"])(again)
