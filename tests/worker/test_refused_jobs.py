"""A job whose own code gets no connection is counted, as a verb of ours that gets none."""

from collections import Counter
from types import SimpleNamespace

import pytest
from django.db import Error, OperationalError

from jobqueue.db import retry, sessions
from jobqueue.db.dialect import ErrorKind
from jobqueue.db.retry import Refusal, retry_transient
from jobqueue.worker.run import attempt
from tests.app import tasks
from tests.factories import claim_one, run_lease
from tests.marks import committed, finding
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no limit of connections"),
]
REFUSED = Refusal("job", ErrorKind.NO_CONNECTION, redone=False)


def no_connection():
    """What Django raises where the account may have no more connections."""
    if VENDOR == "postgres":
        error = OperationalError("FATAL: too many connections for role")
        error.__cause__ = type("TooManyConnections", (Exception,), {"sqlstate": "53300"})()
        return error
    return OperationalError(1226, "User 'jobs' has exceeded the 'max_user_connections' resource (current value: 7)")


def wrapped():
    """What a service of the project makes of it."""
    try:
        raise no_connection()
    except Error as error:
        found = RuntimeError("the report cannot be made")
        found.__cause__ = error
        return found


@pytest.fixture
def counted(monkeypatch):
    """Refusals, and how often no connection was opened, as the observers of a child see them."""
    found = SimpleNamespace(refusals=[], openings=Counter())
    monkeypatch.setattr(retry, "_observers", [found.refusals.append])
    monkeypatch.setattr(sessions, "_observers", [lambda one: found.openings.update(refused=one.refused)])
    return found


def run(monkeypatch, body):
    """Run a job with this body; its error."""
    monkeypatch.setattr(attempt, "_find", lambda _lease: (tasks.add, lambda _context: body()))
    tasks.add.enqueue(1, 2)
    return run_lease(claim_one("default")).error


def raises(error):
    def body():
        raise error

    return body


@finding("O-M4")
def test_a_job_without_a_connection_is_counted(counted, monkeypatch):
    assert isinstance(run(monkeypatch, raises(no_connection())), OperationalError)
    assert counted.refusals == [REFUSED]
    assert counted.openings["refused"] == 1


@finding("O-M4")
def test_it_is_counted_if_the_job_raises_another_error_for_it(counted, monkeypatch):
    assert isinstance(run(monkeypatch, raises(wrapped())), RuntimeError)
    assert counted.refusals == [REFUSED]


@pytest.mark.parametrize("error", [ValueError("no"), OperationalError(1205, "Lock wait timeout exceeded")])
def test_other_errors_of_a_job_are_not(counted, monkeypatch, error):
    assert run(monkeypatch, raises(error)) is error
    assert (counted.refusals, counted.openings["refused"]) == ([], 0)


def test_a_refusal_that_a_verb_has_counted_is_not_counted_again(counted, monkeypatch):
    def body():
        retry_transient("enqueue", raises(no_connection()), using="default")

    assert isinstance(run(monkeypatch, body), OperationalError)
    assert {one.verb for one in counted.refusals} == {"enqueue"}
