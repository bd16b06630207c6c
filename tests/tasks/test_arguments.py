"""Arguments that do not fit a task's function are refused at enqueue, and fail a job at once in a worker."""

import asyncio
import dataclasses
import functools
import inspect
import io
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.template import Context, Engine

from jobqueue import enqueue, enqueue_many, handler, task
from jobqueue.backoff import wait_seconds
from jobqueue.base import validation
from jobqueue.base.compat import Task
from jobqueue.conf import known_tasks
from jobqueue.exceptions import InvalidType, JobQueueError, PayloadError, ResultError, UnknownMethod, WrongArguments
from jobqueue.idempotency import idempotent_view, once
from jobqueue.models import Job
from jobqueue.tasks import registry
from jobqueue.tasks.signature import check_given, shown_signature
from jobqueue.testing import assert_idempotent, run_task
from jobqueue.transactions import retry_transaction
from jobqueue.transitions import retry
from jobqueue.transitions.acking import encode_result
from tests.app import tasks
from tests.app.models import Account
from tests.factories import claim_one, job, make_job, set_columns, settle_run
from tests.marks import committed

pytestmark = pytest.mark.django_db


@task
def pay(order_id, *, currency="EUR"):
    return [order_id, currency]


@task
async def pay_soon(order_id, *, currency="EUR"):
    return [order_id, currency]


@task(takes_context=True)
def pay_in_context(context, order_id):
    return [context.attempt, order_id]


@task
def pay_all(*order_ids, **options):
    return [*order_ids, options]


@task
def pay_by_place(order_id, /, *, note=""):
    return order_id


def passing(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def with_account(function):
    @functools.wraps(function)
    def call(owner):
        return function(Account(owner=owner))

    return call


@task
@passing
@passing
def pay_decorated(order_id, currency="EUR"):
    return [order_id, currency]


@task
@passing
@with_account
def pay_account(account):
    return account.owner


BAD = [
    (pay, (), {}, "missing a required argument: 'order_id'"),
    (pay, (1, 2), {}, "too many positional arguments"),
    (pay, (1,), {"order_id": 2}, "multiple values for argument 'order_id'"),
    (pay, (1,), {"curency": "USD"}, "'curency' is none of its parameters (did you mean 'currency'?)"),
    (pay.using(priority=3), (1,), {"x": 2}, "unexpected keyword argument 'x'"),
    (pay_soon, (), {"currency": "USD"}, "missing a required argument: 'order_id'"),
    (pay_in_context, (), {}, "missing a required argument: 'order_id'"),
    (pay_in_context, (1, 2), {}, "too many positional arguments"),
    (pay_in_context, (1,), {"context": 2}, "leave out context"),
    (pay_by_place, (), {"order_id": 1}, "order_id"),
    (pay_decorated, (), {}, "missing a required argument: 'order_id'"),
    (pay_decorated, (1, 2, 3), {}, "too many positional arguments"),
    (pay_account, (1, 2), {}, "too many positional arguments"),
    (pay_account, (), {"account": 1}, "missing a required argument: 'owner'"),
]
IDS = [f"{task.name}-{args}-{kwargs}" for task, args, kwargs, _ in BAD]


@pytest.mark.parametrize(("given", "args", "kwargs", "words"), BAD, ids=IDS)
def test_arguments_that_the_function_does_not_take_are_refused_and_nothing_is_written(given, args, kwargs, words):
    with pytest.raises(WrongArguments) as caught:
        given.enqueue(*args, **kwargs)
    assert words in str(caught.value)
    assert given.module_path in str(caught.value)
    assert "Nothing was written" in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, PayloadError)
    with pytest.raises(WrongArguments):
        async_to_sync(given.aenqueue)(*args, **kwargs)
    assert not Job.objects.exists()


def test_the_message_shows_what_the_task_takes():
    with pytest.raises(WrongArguments, match=r"It takes pay\(order_id, \*, currency='EUR'\)\."):
        pay.enqueue()
    with pytest.raises(WrongArguments, match=r"It takes pay_in_context\(order_id\)\."):
        pay_in_context.enqueue()


@pytest.mark.parametrize(
    ("given", "args", "kwargs"),
    [
        (pay, (1,), {}),
        (pay, (), {"order_id": 1, "currency": "USD"}),
        (pay_soon, (1,), {"currency": "USD"}),
        (pay_in_context, (), {"order_id": 1}),
        (pay_all, (), {}),
        (pay_all, (1, 2), {"countdown": 3, "context": 4}),
        (pay_by_place, (1,), {}),
        (pay_decorated, (1,), {"currency": "USD"}),
        (pay_account, (), {"owner": "ann"}),
    ],
)
def test_arguments_that_fit_are_taken(given, args, kwargs):
    payload = job(given.enqueue(*args, **kwargs).id).payload
    assert payload == {"args": list(args), "kwargs": kwargs}


def test_a_decorator_that_passes_an_argument_says_so_with_its_signature(monkeypatch):
    def with_client(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return function("client", *args, **kwargs)

        return call

    @with_client
    def fetch(client, url):
        return url

    fetch.__qualname__ = "fetch"
    with pytest.raises(WrongArguments, match="sets __signature__"):
        task(fetch).enqueue("https://example.org")
    again = with_client(fetch.__wrapped__)
    again.__qualname__ = "fetch_again"
    again.__signature__ = inspect.signature(lambda url: url)
    assert job(task(again).enqueue("https://example.org").id).payload["args"] == ["https://example.org"]


class Lazy:
    """Its annotations cannot be evaluated, as those with a name that is imported for type checkers only."""

    def __call__(self, failures, error):
        return 7

    @property
    def __signature__(self):
        raise NameError("name 'Order' is not defined")


def test_a_function_whose_signature_cannot_be_evaluated_is_enqueued_unchecked():
    function = functools.wraps(pay.func)(Lazy())
    lazy = dataclasses.replace(pay, func=pay.func)
    object.__setattr__(lazy, "func", function)
    check_given(lazy, ("one", "two", "three"), {})
    assert shown_signature(lazy) == "(...)"
    assert wait_seconds(Lazy(), 1, ValueError()) == 7


FUNCTIONS = [
    lambda: 1,
    lambda a: 1,
    lambda a, b=1: 1,
    lambda a, *rest: 1,
    lambda a, /, b=2, *, c=3: 1,
    lambda a, *, c: 1,
    lambda **options: 1,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: str(inspect.signature(function)))
@pytest.mark.parametrize("count", range(4))
def test_what_the_function_takes_by_place_is_taken_and_nothing_else(function, count):
    class Own(SimpleNamespace):
        func, takes_context, module_path = staticmethod(function), False, "own"

    try:
        function(*range(count))
    except TypeError:
        with pytest.raises(WrongArguments):
            check_given(Own(), range(count), {})
    else:
        check_given(Own(), range(count), {})


def test_annotations_are_not_evaluated(monkeypatch):
    def as_in_python_3_14(function, *, annotation_format="VALUE", **options):
        # It evaluates annotations unless it is asked for their text.
        if annotation_format != "STRING":
            raise NameError("name 'Order' is not defined")
        return inspect.signature(function, **options)

    monkeypatch.setattr(validation, "inspect", SimpleNamespace(signature=as_in_python_3_14))
    monkeypatch.setattr(validation, "AS_WRITTEN", {"annotation_format": "STRING"})

    def charge(order: "Order", *, cents: "Cents" = 0):  # noqa: F821
        return cents

    charge.__qualname__ = "charge"
    charge = task(charge)
    with pytest.raises(WrongArguments, match=r"It takes charge\(order, \*, cents=0\)"):
        charge.enqueue(1, 2)
    assert charge.enqueue(1, cents=2)
    with pytest.raises(InvalidType, match="does not take it"):
        handler("lazy")(lambda: 1)


def test_a_task_of_another_backend_is_checked_when_it_is_enqueued_here():
    with pytest.raises(WrongArguments, match="missing a required argument"):
        pay.get_backend().enqueue(Task(func=pay.func, backend="default", queue_name="default"), (), {})
    assert not Job.objects.exists()


def test_the_testing_kit_refuses_them_too():
    with pytest.raises(WrongArguments):
        run_task(pay)
    with pytest.raises(WrongArguments):
        assert_idempotent(pay, models=[Account])


WRONG = [
    ("too few", {"args": [], "kwargs": {}}, None),
    ("too many", {"args": [1, 2, 3], "kwargs": {}}, None),
    ("a name of other code", {"args": [1], "kwargs": {"channel": "sms"}}, None),
    ("no payload of a task", {"order_id": 1}, None),
    ("what an upcaster made", {"args": [], "kwargs": {}, "version": 1}, 2),
]


@committed
@pytest.mark.parametrize("given", [pay, pay_soon, pay_decorated], ids=lambda given: given.name)
@pytest.mark.parametrize(("payload", "version"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_job_whose_arguments_only_the_worker_can_see_is_failed_at_once_with_cause_format(
    monkeypatch, given, payload, version
):
    if version is not None:
        monkeypatch.setitem(known_tasks._tasks, given.module_path, Newer(given, version))
        monkeypatch.setattr("jobqueue.tasks.versions._upcasters", {(given.module_path, 1): lambda args, kw: (args, kw)})
    job_id = make_job(payload=payload, task=given.module_path)
    settle_run(claim_one())
    found = job(job_id)
    assert (found.status, found.attempts, found.cause) == (Job.Status.FAILED, 1, "format")
    assert "The function was not called, and the job is not retried" in found.last_error


class Newer:
    """The task as later code has it."""

    def __init__(self, given, version):
        self.version, self._given = version, given

    def __getattr__(self, name):
        return getattr(self._given, name)


@committed
def test_a_newer_version_is_parked_though_its_arguments_do_not_fit():
    job_id = make_job(payload={"args": [], "kwargs": {"channel": "sms"}, "version": 2}, task=pay.module_path)
    settle_run(claim_one())
    found = job(job_id)
    assert (found.status, found.attempts) == (Job.Status.READY, 0)
    assert "version 2" in found.wait_reason


@committed
def test_such_a_job_runs_when_its_payload_was_corrected_and_it_is_retried():
    job_id = make_job(payload={"args": [], "kwargs": {}}, task=pay.module_path)
    settle_run(claim_one())
    set_columns(job_id, payload={"args": [7], "kwargs": {}})
    retry(job_id)
    settle_run(claim_one())
    assert (job(job_id).status, job(job_id).result) == (Job.Status.DONE, [7, "EUR"])


@task
def pays_wrongly():
    pay.enqueue()


@committed
def test_a_task_that_enqueues_another_one_wrongly_is_retried_like_any_error_of_its_body():
    pays_wrongly.enqueue()
    lease = claim_one("default")
    settle_run(lease)
    assert (job(lease.job_id).status, job(lease.job_id).attempts) == (Job.Status.READY, 1)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("delay", "write pay.enqueue(...)"),
        ("apply_async", "pay.using(run_after="),
        ("s", "workflow('name').add(pay, ...), or group('name') for jobs without an order"),
        ("apply", "pay.call(...)"),
        ("send", "write pay.enqueue(...)"),
        ("delay_on_commit", "inside the transaction"),
    ],
)
def test_methods_of_other_queues_name_what_to_write_here(method, words):
    with pytest.raises(AttributeError) as caught:
        getattr(pay, method)
    assert isinstance(caught.value, UnknownMethod)
    assert words in str(caught.value)
    assert not hasattr(pay, method)


def test_other_names_are_missing_as_on_any_object():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pay.nothing


def test_a_call_of_a_task_says_how_to_enqueue_and_how_to_run_it():
    with pytest.raises(InvalidType, match=r"pay\.enqueue\(\.\.\.\) adds a job, and pay\.call\(\.\.\.\) runs"):
        pay(1)
    assert pay.call(1) == [1, "EUR"]


def test_a_template_shows_a_task_and_does_not_call_it():
    engine = Engine(autoescape=False)
    assert engine.from_string("{{ task.module_path }}").render(Context({"task": pay})) == pay.module_path


@pytest.mark.parametrize("decorator", [retry_transaction, once("k"), idempotent_view()], ids=["retry", "once", "view"])
def test_a_decorator_of_functions_refuses_a_task(decorator):
    with pytest.raises(InvalidType):
        decorator(pay)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("countdown", "pay.using(run_after=timezone.now() + timedelta(seconds=60))"),
        ("eta", "pay.using(run_after=an_aware_datetime)"),
        ("retries", "pay.using(max_attempts=5)"),
        ("max_retries", "pay.using(max_attempts=5)"),
        ("queue", 'pay.using(queue_name="mail")'),
        ("priority", "pay.using(priority=...)"),
        ("dedupe_key", "pay.using(dedupe_key=...)"),
        ("rate_limit", "write @task(rate_limit=...)"),
    ],
)
def test_options_among_the_arguments_name_where_they_belong(option, words):
    with pytest.raises(WrongArguments) as caught:
        pay.enqueue(1, **{option: 3})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("countdown", ".using(run_after="),
        ("eta", ".using(run_after="),
        ("retries", ".using(max_attempts=5), where the first attempt counts"),
        ("expire", "did you mean 'expires'?"),
        ("colour", "the fields are ack_each, backend, "),
    ],
)
def test_unknown_fields_of_using_name_the_known_one(option, words):
    with pytest.raises(TypeError) as caught:
        pay.using(**{option: 3})
    assert isinstance(caught.value, JobQueueError)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("retries", "write @task(max_attempts=5)"),
        ("bind", "takes_context=True"),
        ("name", "aliases=[...]"),
        ("autoretry_for", "retry_on=[SomeError]"),
        ("time_limit", "hard_timeout_seconds=60"),
        ("max_attempt", "did you mean 'max_attempts'?"),
    ],
)
def test_unknown_fields_of_the_decorator_name_the_known_one(option, words):
    with pytest.raises(InvalidType) as caught:
        task(**{option: 3})(tasks.add.func)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pay.enqueue(1), "await pay.aenqueue(...)"),
        (lambda: enqueue("q", 1), "await sync_to_async(enqueue)(...)"),
        (lambda: enqueue_many("q", [1]), "await sync_to_async(enqueue_many)(...)"),
    ],
    ids=["task", "row", "rows"],
)
def test_enqueue_inside_a_coroutine_names_the_call_to_await(call, words):
    async def inside():
        call()

    with pytest.raises(SynchronousOnlyOperation) as caught:
        asyncio.run(inside())
    assert isinstance(caught.value, JobQueueError)
    assert words in str(caught.value)


def test_enqueue_of_a_task_as_if_it_were_a_queue_names_the_method():
    with pytest.raises(InvalidType, match=r"write pay\.enqueue\(\.\.\.\)"):
        enqueue(pay, 1)


@pytest.mark.parametrize("batch", [None, 10])
def test_a_handler_that_does_not_take_its_argument_is_refused(monkeypatch, batch):
    monkeypatch.setattr(registry, "_handlers", {})
    for wrong in (lambda: 1, lambda a, b: 1, lambda *, payload: 1):
        with pytest.raises(InvalidType, match="with one argument"):
            handler("rows", batch=batch)(wrong)
    with pytest.raises(InvalidType, match="decorates a function"):
        handler("rows", batch=batch)(pay)
    for right in (
        lambda a: 1,
        lambda a, b=2: 1,
        lambda *a: 1,
        functools.partial(lambda a, b: 1, 1),
        passing(lambda: 1),
    ):
        monkeypatch.setattr(registry, "_handlers", {})
        assert handler("rows", batch=batch)(right) is right


def test_an_open_file_is_refused_with_what_to_pass_instead(tmp_path):
    for opened in (io.BytesIO(b"x"), (tmp_path / "x").open("w")):
        with pytest.raises(PayloadError, match=r"pass the path or the name of the stored file, or what its read\(\)"):
            pay.enqueue(opened)
        opened.close()


def test_a_result_that_cannot_be_stored_does_not_say_that_nothing_was_written():
    for result in (object(), float("nan"), "x" * 2_000_000):
        with pytest.raises(ResultError, match="No result was stored"):
            encode_result(result)
