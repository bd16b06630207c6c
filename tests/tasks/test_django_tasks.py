"""The table as a backend of Django Tasks."""

import pickle
from copy import copy, deepcopy
from dataclasses import FrozenInstanceError, asdict, replace
from datetime import datetime, timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue, task
from jobqueue.base.compat import InvalidTask, Task, TaskResultDoesNotExist, TaskResultStatus, signals, task_backends
from jobqueue.exceptions import InsideCoroutine, JobQueueError
from jobqueue.models import Job
from jobqueue.tasks import registry
from jobqueue.transitions import ack, cancel, fail
from tests.app import tasks
from tests.factories import claim_one, job, lease_with, make_job, now, run_lease, set_columns
from tests.marks import committed
from tests.memories import forget_tasks
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db


def test_an_enqueued_task_is_a_job_that_anybody_can_read():
    result = tasks.add.enqueue(2, b=3)
    made = Job.objects.get()
    assert result.id == str(made.pk)
    assert (made.task, made.queue, made.payload) == (
        "tests.app.tasks.add",
        "default",
        {"args": [2], "kwargs": {"b": 3}},
    )
    assert (result.status, result.args, result.kwargs, result.attempts) == (TaskResultStatus.READY, [2], {"b": 3}, 0)
    assert (result.started_at, result.finished_at, result.backend) == (None, None, "default")
    assert abs(result.enqueued_at - now()) < timedelta(seconds=60)


@pytest.mark.parametrize("when", [5, "2030-01-01", timedelta(hours=1)])
def test_a_run_after_that_is_no_datetime_is_refused(when):
    with pytest.raises(InvalidTask, match="run_after"):
        tasks.add.using(run_after=when)
    assert not Job.objects.exists()


@pytest.mark.parametrize("payload", [5, {"args": 5}, {"args": "ab", "kwargs": [1]}, {"args": {"a": 1}, "kwargs": 0}])
def test_the_result_of_a_job_whose_arguments_plain_sql_wrote_wrongly_can_be_read(payload):
    result = tasks.add.get_result(str(make_job(payload=payload, task="tests.app.tasks.add")))
    assert (result.args, result.kwargs, result.status) == ([], {}, TaskResultStatus.READY)


@pytest.mark.parametrize("holder", [None, "gone.tasks.removed", "tests.app.tasks.boom"])
def test_a_key_that_a_raw_job_or_one_of_another_task_holds_gives_that_job(holder):
    job_id = enqueue("default", {"x": 1}, dedupe_key="k")
    set_columns(job_id, task=holder)
    result = tasks.add.using(dedupe_key="k").enqueue(1, 2)
    assert (result.id, result.status, result.args) == (str(job_id), TaskResultStatus.READY, [])
    assert Job.objects.count() == 1


def away(*args, **kwargs):
    raise OperationalError(2002, "gone")


def reads_of_created_at(statements):
    texts = [one["sql"].replace('"', "`") for one in statements]
    return [sql for sql in texts if sql.startswith("SELECT") and "`created_at` FROM" in sql]


#: how a job is added whose INSERT does not return its created_at, on any database
UNREAD = [{"ordering_key": "k"}, {"dedupe_key": "k"}]


@pytest.mark.parametrize("given", [{}, *UNREAD])
def test_enqueued_at_is_that_of_the_row_and_is_read_once_and_not_before_it_is_asked_for(given):
    with CaptureQueriesContext(connection) as found:
        result = tasks.add.using(**given).enqueue(1, 2)
        assert not reads_of_created_at(found)
        assert result.enqueued_at == result.enqueued_at
        assert len(reads_of_created_at(found)) == (1 if given or VENDOR == "mysql" else 0)
    assert result.enqueued_at == Job.objects.get().created_at


@pytest.mark.parametrize("given", [{}, *UNREAD])
@pytest.mark.parametrize("asked", [copy, deepcopy, replace, asdict, repr])
def test_an_enqueued_at_that_was_not_read_is_a_field_as_any_other(given, asked):
    result = tasks.add.using(**given).enqueue(1, 2)
    read = replace(tasks.add.get_result(result.id), task=result.task)
    assert asked(result) == asked(read)
    assert result == read
    assert replace(result, enqueued_at=None).enqueued_at is None
    with pytest.raises(FrozenInstanceError):
        result.enqueued_at = None


@pytest.mark.parametrize("given", [{}, *UNREAD])
def test_a_pickled_result_has_the_enqueued_at_of_its_job(given):
    result = tasks.add.using(**given).enqueue(1, 2)
    created_at = Job.objects.get().created_at
    # Its function cannot be pickled: the decorator hides it.
    object.__setattr__(result, "task", None)
    pickled = pickle.dumps(result)
    Job.objects.all().delete()
    assert pickle.loads(pickled).enqueued_at == created_at


@committed
@pytest.mark.parametrize("given", UNREAD)
def test_a_job_that_was_rolled_back_was_never_enqueued(given):
    with transaction.atomic():
        result = tasks.add.using(**given).enqueue(1, 2)
        transaction.set_rollback(True)
        assert "enqueued_at=None" in repr(result)
    assert result.enqueued_at is None


@committed
@pytest.mark.parametrize("given", [{}, *UNREAD])
def test_a_coroutine_can_read_the_enqueued_at_of_what_its_threads_have_enqueued(given):
    task = tasks.add.using(**given)

    async def read():
        results = [await task.aenqueue(1, 2), await sync_to_async(task.using(queue_name="x").enqueue)(1, 2)]
        return [result.enqueued_at for result in results]

    assert async_to_sync(read)() == list(Job.objects.order_by("pk").values_list("created_at", flat=True))


@committed
@pytest.mark.parametrize("given", UNREAD)
def test_a_coroutine_that_would_have_to_read_enqueued_at_is_told_what_to_do(given):
    result = tasks.add.using(**given).enqueue(1, 2)

    async def read():
        return result.enqueued_at

    with pytest.raises(InsideCoroutine, match="read it in the function that enqueues"):
        async_to_sync(read)()


@committed
@pytest.mark.parametrize("given", UNREAD)
def test_a_job_that_a_coroutine_added_is_told_though_the_database_went_away_then(given):
    """Whoever hears of an error enqueues again."""

    def breaking(execute, sql, *rest):
        if reads_of_created_at([{"sql": sql}]):
            raise OperationalError(2013, "Lost connection to MySQL server during query")
        return execute(sql, *rest)

    def enqueue_and_lose():
        with connection.execute_wrapper(breaking):
            return tasks.add.using(**given).enqueue(1, 2)

    async def add():
        return await sync_to_async(enqueue_and_lose)()

    result = async_to_sync(add)()
    assert Job.objects.get().pk == int(result.id)
    assert result.enqueued_at == Job.objects.get().created_at


@committed
def test_the_job_that_holds_a_key_is_told_though_the_database_went_away_then(monkeypatch):
    keyed = tasks.add.using(dedupe_key="k")
    first = keyed.enqueue(1, 2)
    monkeypatch.setattr("jobqueue.tasks.results._with_history", away)
    assert (keyed.enqueue(1, 2).id, Job.objects.count()) == (first.id, 1)


@committed
def test_inside_a_transaction_such_an_error_is_raised(monkeypatch):
    keyed = tasks.add.using(dedupe_key="k")
    keyed.enqueue(1, 2)
    monkeypatch.setattr("jobqueue.tasks.results._with_history", away)
    with pytest.raises(OperationalError), transaction.atomic():
        keyed.enqueue(1, 2)
    assert Job.objects.count() == 1


def test_using_knows_every_field():
    when = now() + timedelta(hours=1)
    tasks.add.using(
        run_after=when, queue_name="mail", priority=7, dedupe_key="k", max_attempts=3, lease_seconds=90
    ).enqueue(1, 2)
    made = Job.objects.get()
    assert (made.queue, made.priority, bytes(made.dedupe_key), made.max_attempts, made.lease_seconds) == (
        "mail",
        7,
        b"k",
        3,
        90,
    )
    assert abs(made.run_at - when) < timedelta(milliseconds=1)


def test_using_leaves_the_task_itself_alone():
    tasks.add.using(priority=9, dedupe_key="k").enqueue(1, 2)
    tasks.add.enqueue(1, 2)
    plain = Job.objects.order_by("pk").last()
    assert (plain.priority, plain.dedupe_key) == (0, None)
    assert tasks.add.using(priority=9).using(queue_name="x").priority == 9


def test_the_decorators_fields_are_stored():
    tasks.boom.enqueue()
    assert Job.objects.get().max_attempts == 3


def test_a_held_key_gives_the_existing_result():
    keyed = tasks.add.using(dedupe_key="k")
    first = keyed.enqueue(1, 2)
    assert keyed.enqueue(3, 4).id == first.id
    assert keyed.enqueue(3, 4).args == [1, 2]


def result_after(act):
    found = tasks.add.enqueue(1, 2)
    act(found)
    return tasks.add.get_result(found.id)


def test_a_waiting_task_is_ready_and_a_running_one_is_running():
    found = tasks.add.enqueue(1, 2)
    assert tasks.add.get_result(found.id).status == TaskResultStatus.READY
    claim_one("default", worker="w1")
    running = tasks.add.get_result(found.id)
    assert (running.status, running.worker_ids, running.attempts) == (TaskResultStatus.RUNNING, ["w1"], 1)
    assert running.started_at is not None
    with pytest.raises(ValueError, match="not finished"):
        _ = running.return_value


def test_a_done_task_is_successful_with_its_value():
    done = result_after(lambda _: ack(claim_one("default"), result=3))
    assert (done.status, done.return_value, done.errors) == (TaskResultStatus.SUCCESSFUL, 3, [])
    assert done.is_finished
    assert done.finished_at is not None


def test_a_task_that_will_be_retried_is_ready_again_and_tells_its_error():
    waiting = result_after(lambda _: fail(claim_one("default", worker="w1"), error=ValueError("no")))
    assert (waiting.status, waiting.attempts, waiting.worker_ids) == (TaskResultStatus.READY, 1, ["w1"])
    (error,) = waiting.errors
    assert error.exception_class is ValueError
    assert "no" in error.traceback


def test_a_dead_task_is_failed():
    dead = result_after(lambda _: fail(lease_with(claim_one("default"), max_attempts=1), error=KeyError("k")))
    assert (dead.status, dead.errors[0].exception_class) == (TaskResultStatus.FAILED, KeyError)
    assert dead.is_finished
    with pytest.raises(ValueError, match="failed"):
        _ = dead.return_value


def test_a_canceled_task_is_failed_and_says_why():
    gone = result_after(lambda found: cancel(found.id))
    assert gone.status == TaskResultStatus.FAILED
    assert "Canceled" in gone.errors[-1].exception_class_path


def test_refresh_reads_again():
    found = tasks.add.enqueue(1, 2)
    ack(claim_one("default"), result=3)
    assert found.status == TaskResultStatus.READY
    found.refresh()
    assert (found.status, found.return_value) == (TaskResultStatus.SUCCESSFUL, 3)


@pytest.mark.parametrize(
    "result_id",
    [
        "",
        "x",
        "-1",
        "1.5",
        "1 OR 1=1",
        "9" * 30,
        "9" * 20,
        str(2**63),
        "\x00",
        "\ud800",
        "\u0661",
        None,
        5.0,
        b"1",
        "123456",
    ],
)
def test_an_id_that_is_not_ours_does_not_exist(result_id):
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(result_id)


def test_the_id_of_a_job_that_was_rolled_back_does_not_exist():
    with transaction.atomic():
        result = tasks.add.enqueue(1, 2)
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist, match="its transaction was rolled back or is still open"):
        tasks.add.get_result(result.id)


def test_a_raw_row_is_no_task_result():
    with pytest.raises(TaskResultDoesNotExist, match="is a raw row of the queue"):
        task_backends["default"].get_result(str(make_job()))


def test_a_result_of_an_unknown_task_does_not_exist():
    job_id = make_job(task="gone.away")
    with pytest.raises(TaskResultDoesNotExist, match=r"the task 'gone\.away', which this process has not imported"):
        task_backends["default"].get_result(str(job_id))


def test_a_naive_run_after_is_refused():
    with pytest.raises((InvalidTask, JobQueueError)):
        tasks.add.using(run_after=datetime(2031, 1, 1)).enqueue(1, 2)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"max_attempts": 0},
        {"max_attempts": "3"},
        {"lease_seconds": 0},
        {"lease_seconds": float("nan")},
        {"dedupe_key": ""},
        {"dedupe_key": "k" * 65},
        {"dedupe_key": 5},
        {"backoff": "5"},
        {"priority": 101},
        {"priority": "high"},
        {"queue_name": ""},
        {"queue_name": "a,b"},
        {"queue_name": "q" * 65},
    ],
    ids=str,
)
def test_a_bad_field_is_refused_and_nothing_is_written(fields):
    with pytest.raises((InvalidTask, JobQueueError, TypeError)):
        tasks.add.using(**fields).enqueue(1, 2)
    assert not Job.objects.exists()


def test_using_refuses_a_field_it_does_not_know():
    with pytest.raises(TypeError):
        tasks.add.using(retries=3)


def test_a_local_function_is_no_task():
    def local():
        pass

    with pytest.raises(InvalidTask):
        task(local)


def test_a_queue_outside_the_list_is_refused(settings):
    settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": ["default"]}}
    with pytest.raises((InvalidTask, JobQueueError)):
        tasks.add.using(queue_name="web").enqueue(1, 2)
    tasks.add.enqueue(1, 2)
    assert Job.objects.count() == 1


def test_each_enqueue_goes_by_the_settings_as_they_are(settings):
    first = tasks.add.enqueue(1, 2)
    settings.JOBQUEUE = {"QUEUES": {"default": {"MAX_ATTEMPTS": 3}}}
    second = tasks.add.enqueue(1, 2)
    assert [job(first.id).max_attempts, job(second.id).max_attempts] == [25, 3]
    settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": ["mail"]}}
    with pytest.raises((InvalidTask, JobQueueError)):
        tasks.add.enqueue(1, 2)
    assert Job.objects.count() == 2


def test_a_copy_of_a_task_that_is_gone_leaves_nothing_to_the_next_one():
    for priority in range(20):
        tasks.add.using(priority=priority, dedupe_key=f"k{priority}").enqueue(1, 2)
    found = Job.objects.order_by("id").values_list("priority", "dedupe_key")
    assert [(priority, bytes(key)) for priority, key in found] == [(n, b"k%d" % n) for n in range(20)]


def test_tuples_in_arguments_become_lists():
    tasks.add.enqueue((1, 2), [(3,)])
    assert Job.objects.get().payload["args"] == [[1, 2], [[3]]]


def test_a_task_may_be_called_as_a_function(evidence):
    from jobqueue import current_job

    assert current_job() is None
    assert tasks.leave.call.__self__ is tasks.leave


@committed
def test_the_async_twins_do_the_same():
    found = async_to_sync(tasks.add.aenqueue)(1, 2)
    assert job(found.id).payload["args"] == [1, 2]
    assert async_to_sync(tasks.add.aget_result)(found.id).id == found.id


def double(n):
    return 2 * n


@pytest.fixture
def plain(settings, monkeypatch, own_registry):
    """A task of another backend, made by Django's own class, in a module that workers import."""
    dummy = f"{task_backends.__class__.__module__}.backends.dummy.DummyBackend"
    settings.TASKS = {**settings.TASKS, "other": {"BACKEND": dummy, "QUEUES": []}}
    made = Task(func=double, priority=0, queue_name="default", backend="other")
    monkeypatch.setattr(tasks, "plain", made, raising=False)
    return made


def test_a_task_of_another_backend_can_be_sent_here(plain):
    found = plain.using(backend="default").enqueue(21)
    assert plain.using(backend="default").get_result(found.id).args == [21]
    ack(claim_one("default"), result=42)
    found.refresh()
    assert found.return_value == 42


@committed
def test_a_worker_that_never_enqueued_it_knows_it_too(plain):
    plain.using(backend="default").enqueue(21)
    forget_tasks([plain.module_path])
    assert "tests.app.tasks" in list(registry.discover())
    assert run_lease(claim_one("default")).result == "42"


def test_the_signal_comes_from_the_backends_class():
    received = []

    def receive(sender, task_result, **_):
        received.append((sender, task_result))

    signals.task_enqueued.connect(receive)
    try:
        result = tasks.add.enqueue(1, 2)
    finally:
        signals.task_enqueued.disconnect(receive)
    assert received == [(type(task_backends["default"]), result)]
