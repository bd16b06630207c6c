"""A worker's own sessions: the server ends one that idles within a transaction, and no other."""

from contextlib import suppress

import pytest
from django.db import OperationalError, connection, transaction

from jobqueue.db import sessions
from jobqueue.db.sessions import limit_idle_transactions
from tests.marks import committed, finding
from tests.races.actors import Actor
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR != "mysql", reason="elsewhere the limit is one for transactions")]
USUAL = 28_800


def asked(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def limit():
    """After how many seconds without a statement the server ends this session."""
    return asked("SELECT @@SESSION.wait_timeout")[0]


def limits():
    """Those before, within and after a transaction."""
    before = limit()
    with transaction.atomic():
        within = limit()
    return before, within, limit()


def statements(work):
    """How many statements of this session the server counts for `work`."""
    before = int(asked("SHOW SESSION STATUS LIKE 'Questions'")[1])
    work()
    return int(asked("SHOW SESSION STATUS LIKE 'Questions'")[1]) - before - 1


def one_transaction():
    with transaction.atomic():
        asked("SELECT 1")


@pytest.fixture
def in_a_workers_thread():
    """in_a_workers_thread(function): what it returns in a thread with the limit."""

    def run(function):
        def work():
            connection.ensure_connection()
            with connection.cursor() as cursor:
                cursor.execute(f"SET SESSION wait_timeout = {USUAL}")
            limit_idle_transactions("default")
            return function()

        return Actor(work).result()

    return run


@finding("F1")
def test_the_limit_is_short_only_within_a_transaction(in_a_workers_thread):
    assert in_a_workers_thread(limits) == (USUAL, sessions.IDLE_SECONDS, USUAL)


def test_after_a_rollback_it_is_as_before(in_a_workers_thread):
    def rolled_back():
        with suppress(ZeroDivisionError), transaction.atomic():
            raise ZeroDivisionError
        return limit()

    assert in_a_workers_thread(rolled_back) == USUAL


def test_a_session_that_is_opened_again_has_it_too(in_a_workers_thread):
    def again():
        limits()
        connection.close()
        return limits()

    before, within, after = in_a_workers_thread(again)
    assert within == sessions.IDLE_SECONDS
    assert before == after > within


def test_a_shorter_limit_of_the_session_stays(in_a_workers_thread, monkeypatch):
    monkeypatch.setattr(sessions, "IDLE_SECONDS", 2 * USUAL)
    assert in_a_workers_thread(limits) == (USUAL, USUAL, USUAL)


def test_it_costs_no_statement(in_a_workers_thread):
    assert in_a_workers_thread(lambda: statements(one_transaction)) == statements(one_transaction)


def test_other_threads_are_without_it():
    before, within, after = Actor(limits).result()
    assert before == within == after


def test_a_server_that_does_not_take_it_is_used_without_it(in_a_workers_thread, monkeypatch):
    def refuse(connection, sql):
        raise OperationalError(1193, "Unknown system variable")

    monkeypatch.setattr("jobqueue.db.mysql.features.one_value", refuse)
    assert in_a_workers_thread(limits) == (USUAL, USUAL, USUAL)
