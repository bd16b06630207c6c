"""How many calls a library has made inside one attempt is read from its exceptions, without its import."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from jobqueue import task
from jobqueue.checks import check_nesting
from jobqueue.failures.nested import ONCE, nested_tries, wrapped_tries
from jobqueue.transitions import claim
from tests.factories import run_lease
from tests.marks import committed


def raised(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error


def test_an_ordinary_error_is_one_call():
    assert nested_tries(raised(int, "x")) == ONCE


def test_the_tries_of_urllib3_and_of_requests_on_it_are_counted():
    import requests
    import urllib3
    from requests.adapters import HTTPAdapter

    def plain():
        with urllib3.PoolManager() as pool:
            pool.request("GET", "http://127.0.0.1:1/", retries=urllib3.Retry(total=3))

    def by_requests(total):
        with requests.Session() as session:
            session.mount("http://", HTTPAdapter(max_retries=urllib3.Retry(total=total)))
            session.get("http://127.0.0.1:1/")

    assert nested_tries(raised(plain)) == (4, ("urllib3",))
    assert nested_tries(raised(by_requests, 2)) == (3, ("urllib3",))
    assert nested_tries(raised(by_requests, 0)) == ONCE


def test_a_response_tells_its_retries():
    history = SimpleNamespace(raw=SimpleNamespace(retries=SimpleNamespace(history=(1, 2))))
    error = ValueError("503")
    error.response = history
    assert nested_tries(error) == (3, ("urllib3",))


def test_botocore_tells_its_retries_with_the_error():
    from botocore.exceptions import ClientError

    error = ClientError({"Error": {"Code": "503"}, "ResponseMetadata": {"RetryAttempts": 4}}, "PutObject")
    assert nested_tries(error) == (5, ("botocore",))


LIBRARIES = """
class RetryError(Exception):
    def __init__(self, last_attempt):
        self.last_attempt = last_attempt

class Stop:
    max_attempt_number = 4

class Retrying:
    stop = Stop()

class State:
    attempt_number = 3
    outcome = None

def reraises(function):
    retry_state = State()
    function()

def gives_up(function):
    try:
        function()
    except Exception as error:
        raise RetryError(State()) from error

def retry(function):
    tries = 2
    function()
"""


@pytest.fixture
def library():
    """Makes a module of this name that has the shape of a library that retries."""

    def make(name):
        module = ModuleType(name)
        exec(LIBRARIES, module.__dict__)
        return module

    return make


def test_the_tries_of_tenacity_are_counted_whether_it_reraises_or_not(library):
    tenacity = library("tenacity")
    assert nested_tries(raised(tenacity.reraises, lambda: int("x"))) == (3, ("tenacity",))
    assert nested_tries(raised(tenacity.gives_up, lambda: int("x"))) == (3, ("tenacity",))


def test_layers_multiply(library):
    tenacity, backoff = library("tenacity"), library("backoff")
    error = raised(tenacity.reraises, lambda: backoff.retry(lambda: int("x")))
    assert nested_tries(error) == (6, ("backoff", "tenacity"))


def test_attributes_that_raise_and_errors_that_cause_each_other_are_one_call():
    class Hostile(Exception):
        @property
        def response(self):
            raise SystemError("no")

    error = Hostile()
    error.__cause__ = other = ValueError()
    other.__cause__ = error
    assert nested_tries(error) == ONCE


def test_nothing_is_imported():
    assert not {"tenacity", "backoff"} & set(sys.modules)


def wrapped_task():
    """Counts as wrapped by a library while `retry` is set on it."""


@pytest.mark.parametrize(
    ("stops", "words"),
    [(True, "3 attempts x 4 tries are up to 12 calls"), (False, "each of its 3 attempts repeats the call until")],
)
def test_check_reports_a_task_that_a_library_repeats(own_registry, library, monkeypatch, stops, words):
    made = library("tenacity")
    retrying = made.Retrying()
    if not stops:
        monkeypatch.setattr(made.Retrying, "stop", None)
    monkeypatch.setattr(wrapped_task, "retry", retrying, raising=False)
    assert wrapped_tries(wrapped_task) == ("tenacity", 4 if stops else None)
    task(max_attempts=3)(wrapped_task)
    (problem,) = [found for found in check_nesting() if found.id == "jobqueue.W031"]
    assert "tenacity repeats task tests.failures.test_nested.wrapped_task" in problem.msg
    assert words in problem.msg


def test_check_reports_a_dependency_that_has_no_settings(own_registry, settings):
    settings.JOBQUEUE = {"DEPENDENCIES": {"stripe": {}}}
    task(dependency="strype")(wrapped_task)
    (problem,) = check_nesting()
    assert problem.id == "jobqueue.W032"
    assert "did you mean 'stripe'?" in problem.msg
    settings.JOBQUEUE = {}
    assert check_nesting() == []


AGAIN = []


def again(number):
    AGAIN.pop().enqueue(number)


@committed
def test_a_job_that_enqueues_itself_is_reported_once(own_registry, caplog):
    made = task(queue_name="q")(again)
    AGAIN[:] = [made.using(queue_name="other"), made.using(queue_name="other")]
    for _ in range(2):
        made.enqueue(1)
    for lease in claim("q", 2, worker="w"):
        assert run_lease(lease).error is None
    (record,) = [record for record in caplog.records if "retries are nested" in record.getMessage()]
    assert record.getMessage().startswith(
        "retries are nested: a job of tests.failures.test_nested.again enqueues the same task with the same arguments."
    )


@committed
def test_a_job_that_enqueues_its_task_with_other_arguments_is_not_reported(own_registry, caplog, monkeypatch):
    monkeypatch.setattr("jobqueue.tasks.nesting._reported", set())
    made = task(queue_name="q")(again)
    AGAIN[:] = [made.using(queue_name="other")]
    made.enqueue(1)
    (lease,) = claim("q", worker="w")
    AGAIN[0] = SimpleNamespace(enqueue=lambda number: made.using(queue_name="other").enqueue(number + 1))
    assert run_lease(lease).error is None
    assert "retries are nested" not in caplog.text
