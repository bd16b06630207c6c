"""A thread that finds its database unreachable says so once, waits longer each time, and says when it is over."""

import logging
import time

import pytest
from django.db import OperationalError, ProgrammingError

from jobqueue.db.outage import MOST_SECONDS, URGENT_SECONDS, Outage
from jobqueue.exceptions import DatabaseBusy
from tests.settings import VENDOR

GONE = {
    "postgres": OperationalError("the connection is closed"),
    "sqlite": OperationalError("disk I/O error"),
}.get(VENDOR, OperationalError(2013, "Lost connection"))
REFUSED = ProgrammingError("no such right")


@pytest.fixture
def lines(caplog):
    """(level, words) of each line that was logged at WARNING or above."""
    caplog.set_level(logging.INFO)
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def test_the_first_failure_and_the_end_are_logged_once_each(lines):
    outage = Outage("w-1", "claim", "default")
    pauses = [outage.met(GONE) for _ in range(5)]
    outage.over()
    outage.over()
    (began, ended) = lines()
    expected = f"w-1 cannot claim: the database is unreachable ({GONE}); trying again in {pauses[0]:.1f} s"
    assert began == ("WARNING", expected)
    assert ended == ("WARNING", "w-1 can claim: the database answers again after 0.0 s")


def test_the_waits_grow_up_to_their_most():
    patient, urgent = Outage("w", "claim", "default"), Outage("w", "renew", "default", most_seconds=URGENT_SECONDS)
    assert patient.met(GONE) <= 0.2
    for _ in range(20):
        last, soon = patient.met(GONE), urgent.met(GONE)
    assert MOST_SECONDS / 2 < last <= MOST_SECONDS
    assert URGENT_SECONDS / 2 < soon <= URGENT_SECONDS
    assert patient.next_try > patient.since
    patient.over()
    assert (patient.failures, patient.next_try) == (0, 0.0)
    assert patient.met(GONE) <= 0.2


def test_a_refusal_is_told_apart_and_logged_after_a_lost_connection_too(lines):
    outage = Outage("w", "claim", "default")
    outage.met(GONE)
    assert outage.code
    outage.met(REFUSED)
    outage.met(REFUSED)
    assert (outage.code, outage.unanswered) == ("", False)
    assert [level for level, _ in lines()] == ["WARNING", "ERROR"]
    assert "w cannot claim: the database refused it (no such right)" in lines()[1][1]


def test_a_transaction_that_was_given_up_for_a_lost_connection_counts_as_one():
    outage, busy = Outage("w", "claim", "default"), DatabaseBusy("six times")
    busy.__cause__ = GONE
    outage.met(busy)
    assert outage.code
    outage.met(DatabaseBusy("behind a lock"))
    assert not outage.code


def test_what_another_thread_logs_is_not_logged_here_nor_its_end(lines):
    outage = Outage("w", "reap", "default")
    outage.met(GONE, quiet=True)
    outage.over()
    assert not lines()


def test_an_outage_that_another_process_has_noticed_goes_on(lines):
    outage = Outage("w", "renew leases", "default", since=time.monotonic() - 30)
    outage.met(GONE)
    assert not lines(), "the other process has logged it"
    outage.over()
    assert lines() == [("WARNING", "w can renew leases: the database answers again after 30.0 s")]


def test_what_is_no_database_can_fail_too(lines):
    outage = Outage("w", "receive wake-ups", "default", meanwhile="workers poll")
    outage.met(ConnectionError("refused"))
    outage.over()
    (_, began), (_, ended) = lines()
    assert began.startswith("w cannot receive wake-ups: ConnectionError: refused; trying again in 0.")
    assert began.endswith(" s; workers poll")
    assert ended == "w can receive wake-ups again after 0.0 s"


def test_a_failure_and_the_end_are_reported_to_the_owner():
    told = []
    outage = Outage(
        "w", "claim", "default", on_failure=lambda: told.append("failed"), on_end=lambda: told.append("over")
    )
    outage.over()
    outage.met(GONE)
    outage.met(GONE)
    outage.over()
    assert told == ["failed", "failed", "over"]
