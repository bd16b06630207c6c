"""A connection that is lost while the rules are read lets nothing start that is paused."""

import pytest
from django.db import OperationalError, ProgrammingError

from jobqueue import enqueue, flow
from jobqueue.gates import rules
from jobqueue.gates.rules import forget_rules
from jobqueue.models import Job
from jobqueue.transitions import claim
from tests.factories import make_job
from tests.faults.conftest import killed_at
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = committed


@pytest.fixture
def unreadable(monkeypatch):
    """unreadable(error): the rules cannot be read from now on; unreadable(None): they can again."""
    read = rules._read_now

    def break_with(error):
        def fail(using):
            raise error

        monkeypatch.setattr(rules, "_read_now", read if error is None else fail)

    return break_with


def gone():
    """The error of a server that does not answer, as this database's driver has it."""
    if VENDOR == "postgres":
        return OperationalError("connection failed: FATAL:  the database system is shutting down")
    if VENDOR == "sqlite":
        return OperationalError("unable to open database file")
    return OperationalError(2013, "Lost connection to server during query")


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no sessions to end")
def test_a_paused_queue_starts_nothing_after_its_session_was_ended():
    make_job("q")
    flow.pause("q", reason="maintenance of the printer")
    for number in (1, 2):
        forget_rules()
        with killed_at(number):
            assert claim("q", worker="w") == []
    flow.resume("q")
    assert len(claim("q", worker="w")) == 1


@pytest.mark.parametrize("has_read", [True, False], ids=["that has read them", "that has not"])
def test_a_process_starts_nothing_by_rules_that_it_could_not_read(has_read, unreadable):
    make_job("q")
    if has_read:
        assert claim("empty", worker="w") == []
    flow.pause("q", reason="maintenance of the printer")
    unreadable(gone())
    for _ in range(2):
        with pytest.raises(OperationalError):
            claim("q", worker="w")
    # The database answers again within the time for which rules count.
    unreadable(None)
    assert claim("q", worker="w") == []
    assert Job.objects.get().status == Job.Status.READY
    flow.resume("q")
    assert len(claim("q", worker="w")) == 1


def test_what_was_known_before_a_change_counts_while_the_change_cannot_be_read(unreadable):
    flow.pause("q", reason="maintenance of the printer")
    assert claim("q", worker="w") == []
    forget_rules()
    unreadable(gone())
    assert rules.rules("default").of_queue("q").paused
    assert rules.last_rules("default").of_queue("q").paused


def test_a_producer_goes_on_without_rules(unreadable):
    unreadable(gone())
    assert enqueue("q", 1)


def test_an_account_that_may_not_read_them_goes_on(unreadable):
    make_job("q")
    unreadable(
        ProgrammingError(1142, "SELECT command denied")
        if VENDOR in ("mysql", "mariadb")
        else ProgrammingError("denied")
    )
    assert len(claim("q", worker="w")) == 1
