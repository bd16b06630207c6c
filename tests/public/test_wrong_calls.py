"""A wrong argument is refused by an error of ours, in a sentence, and never by an AttributeError from inside."""

import importlib
from datetime import UTC, datetime

import pytest
from django.apps import apps
from django.db import connection

import jobqueue.models
from jobqueue import enqueue, enqueue_many, task, transitions
from jobqueue.backoff import Backoff
from jobqueue.base.compat import InvalidTaskBackend
from jobqueue.bulk import delete_in_chunks
from jobqueue.exceptions import InvalidType, JobQueueError, NotMigrated, WrongSettings
from jobqueue.idempotency import idempotent_view, once
from jobqueue.locks import lease_lock, mutex, redis_lock
from jobqueue.models import Job, LockRow
from jobqueue.outbox import retry as retry_event
from jobqueue.testing import run_task
from tests.app.tasks import add
from tests.marks import committed

pytestmark = pytest.mark.django_db


def plain(n: int) -> int:
    return n


CALLS = {
    "enqueue priority": (lambda: enqueue("q", 1, priority="x"), "priority must be an int"),
    "enqueue_many": (lambda: enqueue_many("q", 5), "payloads must be a list"),
    "using priority": (lambda: add.using(priority="high"), "priority must be an int, got 'high'"),
    "using nan": (lambda: add.using(priority=float("nan")), "priority must be an int"),
    "task priority": (lambda: task(priority=[])(plain), "priority must be an int"),
    "using an unknown field": (lambda: add.using(priorty=5), "no field 'priorty' (did you mean 'priority'?)"),
    "using a field of task": (lambda: add.using(version=2), "it belongs in @task(version=...)"),
    "task with an unknown field": (lambda: task(max_attempt=5), "did you mean 'max_attempts'?"),
    "task with a field of using": (lambda: task(run_after=5), "it belongs in .using(run_after=...)"),
    "a backend": (lambda: add.using(backend=5), "backend must be an alias of TASKS"),
    "an unknown backend": (lambda: add.using(backend="defualt"), "'defualt' (did you mean 'default'?) is not in TASKS"),
    "a key function": (
        lambda: add.using(dedupe_key=lambda: "k").enqueue(1, 2),
        "the dedupe_key of tests.app.tasks.add is a function that cannot be called with the task's arguments",
    ),
    "ack": (lambda: transitions.ack(5), "a lease must be a Lease, as claim() returns it, got int"),
    "fail": (lambda: transitions.fail(None, error="x"), "a lease must be a Lease"),
    "snooze": (lambda: transitions.snooze("5", delay_seconds=1), "a lease must be a Lease"),
    "release": (lambda: transitions.release(object()), "a lease must be a Lease"),
    "heartbeat": (lambda: transitions.heartbeat("x", lease_seconds=5), "a lease must be a Lease"),
    "ack_many": (lambda: transitions.ack_many(5), "leases must be a list of leases, got int"),
    "ack_many of ids": (lambda: transitions.ack_many([5]), "a lease must be a Lease"),
    "ack_many results": (lambda: transitions.ack_many([], results=5), "results must be a list"),
    "fail_many": (lambda: transitions.fail_many("abc", error="x"), "a lease must be a Lease"),
    "heartbeat_many": (lambda: transitions.heartbeat_many(None, lease_seconds=5), "leases must be a list"),
    "release_many": (lambda: transitions.release_many(None), "leases must be a list"),
    "back-off": (lambda: Backoff(base_seconds="5"), "base_seconds of a Backoff must be a number, got str"),
    "once": (lambda: once("k")(5), "@once decorates a function, got int"),
    "idempotent_view()": (lambda: idempotent_view()(5), "@idempotent_view decorates a view function"),
    "idempotent_view without parentheses": (lambda: idempotent_view(plain), "with parentheses"),
    "bulk": (lambda: delete_in_chunks(Job.objects.all(), on_chunk=5), "on_chunk must be a function, got int"),
    "run_task": (lambda: run_task(plain, 5), "a task is needed, got <function plain"),
    "an event": (lambda: retry_event("x"), "an event id is an int"),
}


@pytest.mark.parametrize("call", [transitions.ack, transitions.release, lambda lease: transitions.ack_many([lease])])
@pytest.mark.parametrize("column", [{"token": "text"}, {"token": None}, {"job_id": "1"}, {"job_id": True}])
def test_a_lease_that_was_not_kept_as_it_was_is_refused_in_words(call, column):
    at = datetime(2030, 1, 1, tzinfo=UTC)
    times = {"lock_until": at, "locked_at": at, "run_at": at, "created_at": at}
    facts = {"queue": "q", "task": None, "max_attempts": 1, "worker": "w", "lease_seconds": 60.0, "using": "default"}
    lease = transitions.Lease(job_id=1, token=b"t" * 16, fence=1, attempt=1, payload=1, **times, **facts)
    with pytest.raises(InvalidType, match="a lease has an int as job_id and bytes as token, got"):
        call(lease._replace(**column))


@pytest.mark.parametrize(("call", "words"), CALLS.values(), ids=CALLS)
def test_a_wrong_argument_is_refused_in_words(call, words):
    with pytest.raises((TypeError, ValueError)) as refused:
        call()
    assert isinstance(refused.value, JobQueueError)
    assert words in str(refused.value)


def test_an_unknown_backend_is_the_error_of_django_tasks_too():
    with pytest.raises(InvalidTaskBackend):
        task(backend="nowhere")(plain)


def test_a_type_error_inside_a_key_function_is_not_taken_for_wrong_arguments():
    def key(a, b):
        return a + "x"

    with pytest.raises(TypeError) as raised:
        add.using(dedupe_key=key).enqueue(1, 2)
    assert not isinstance(raised.value, InvalidType)


def test_wrong_settings_are_an_error_of_ours_wherever_they_are_met(settings):
    settings.JOBQUEUE = {"LEASE_SECOND": 5}
    for call in (lambda: enqueue("q", 1), lambda: redis_lock("k", 5)):
        with pytest.raises(WrongSettings, match=r"unknown key 'LEASE_SECOND' \(did you mean 'LEASE_SECONDS'\?\)"):
            call()


def test_a_database_that_is_not_in_databases_is_named_with_its_setting(settings):
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": {"DATABASE": "nowhere"}}}
    with pytest.raises(WrongSettings, match=r"\['default'\]\['OPTIONS'\]\['DATABASE'\] = 'nowhere' is not in DATA"):
        add.enqueue(1, 2)
    settings.JOBQUEUE = {"DATABASE": "elsewhere"}
    for call in (lambda: enqueue("q", 1), lambda: mutex("k"), lambda: transitions.cancel(5)):
        with pytest.raises(WrongSettings, match=r"JOBQUEUE\['DATABASE'\] = 'elsewhere' is not in DATABASES"):
            call()


def test_without_the_app_the_error_names_the_setting(monkeypatch):
    monkeypatch.setattr(apps, "is_installed", lambda name: False)
    with pytest.raises(WrongSettings, match="'jobqueue' is not in INSTALLED_APPS"):
        importlib.reload(jobqueue.models)


@pytest.fixture
def without(request):
    """The table of a model is not there."""
    table = request.param._meta.db_table
    with connection.schema_editor() as editor:
        editor.alter_db_table(request.param, table, "job_table_away")
    yield table
    with connection.schema_editor() as editor:
        editor.alter_db_table(request.param, "job_table_away", table)


@committed
@pytest.mark.parametrize("without", [Job], indirect=True)
@pytest.mark.parametrize(
    "call", [lambda: enqueue("q", 1), lambda: add.enqueue(1, 2), lambda: transitions.claim("q", worker="w")]
)
def test_a_missing_table_is_told_with_the_command_that_makes_it(without, call):
    with pytest.raises(NotMigrated, match=f"the table {without} is not in the database 'default'.* manage.py migrate"):
        call()


@committed
@pytest.mark.parametrize("without", [LockRow], indirect=True)
def test_a_missing_table_of_the_locks_is_told_likewise(without):
    with pytest.raises(NotMigrated, match=without), lease_lock("k", 5):
        raise AssertionError("the lock was granted")
