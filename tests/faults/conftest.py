"""Break the connection of the code under test, really, at a chosen statement."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest
from django.db import connection, connections

from jobqueue.admin import lock_activity
from jobqueue.db import retry
from jobqueue.lockstats import recorder
from jobqueue.lockstats.report import read_redone
from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.shared.scoreboard import Scoreboard
from tests.patience import wait_until
from tests.proofs.figures import figure, pytest_runtest_makereport  # noqa: F401
from tests.settings import VENDOR


@contextmanager
def second_connection():
    """Another session of the same database."""
    other = connections["default"].copy()
    try:
        yield other
    finally:
        other.close()


def session_id():
    """The server's id of this thread's session."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgres" else "SELECT CONNECTION_ID()")
        return cursor.fetchone()[0]


def kill(session):
    """End a session from another one."""
    with second_connection() as other, other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)" if VENDOR == "postgres" else "KILL %s", [session])
    wait_until_gone(session)


def wait_until_gone(session):
    """Return when the server has ended a session, with its transaction and all its locks."""
    listed = "pg_stat_activity WHERE pid" if VENDOR == "postgres" else "information_schema.processlist WHERE id"
    with second_connection() as other, other.cursor() as cursor:

        def gone():
            cursor.execute(f"SELECT COUNT(*) FROM {listed} = %s", [session])
            return cursor.fetchone()[0] == 0

        wait_until(gone, what="the end of the session")


@contextmanager
def killed_at(number):
    """Inside the block, this thread's session is killed by the server just before its statement `number` (from 1)."""
    seen = {"statements": 0, "killed": False}

    def before(execute, sql, params, many, context):
        seen["statements"] += 1
        if seen["statements"] == number:
            kill(real)
            seen["killed"] = True
        return execute(sql, params, many, context)

    connection.ensure_connection()
    real = session_id()
    with connection.execute_wrapper(before):
        yield seen


@pytest.fixture
def shown(monkeypatch):
    """How many transactions were redone, by verb and error: in the table, on the admin page and in /metrics alike."""
    monkeypatch.setattr(retry, "_observers", [*retry._observers])
    scoreboard = Scoreboard(1, 1)
    retry.observe_refusals(scoreboard.redone[0].add)
    probe = Probe.__new__(Probe)
    probe._scoreboard = scoreboard

    def look(verb, error):
        recorder.flush()
        found = read_redone(seconds=3600, using="default")
        (number,) = [one.redone for one in found if (one.verb, one.error, one.given_up) == (verb, error, 0)]
        text = probe._metrics()[1]
        assert f'transactions_redone_total{{error="{error}",verb="{verb}"}} {number}.0' in text
        # Of the page, because the page itself needs users, whose tables are not emptied.
        (page,) = [part for part in lock_activity._statistics(3600, "default") if part.title == "Redone transactions"]
        assert (verb, error, number, 0) in [row[:4] for row in page.rows]
        return number

    return look


@pytest.fixture
def answer_lost(monkeypatch):
    """The next commit of this thread, or write outside a transaction, happens, and its answer and session are lost."""
    from django.db.backends.base.base import BaseDatabaseWrapper

    commit = BaseDatabaseWrapper._commit
    used = []

    def lose(wrapper):
        used.append(True)
        kill(session_of(wrapper))
        with wrapper.wrap_database_errors:
            wrapper.connection.cursor().execute("SELECT 1")

    def commit_and_lose(self):
        commit(self)
        if not used and self is connections["default"]:
            lose(self)

    def write_and_lose(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if not used and sql.startswith(("UPDATE", "INSERT", "DELETE")) and context["connection"].get_autocommit():
            lose(context["connection"])
        return result

    def session_of(wrapper):
        cursor = wrapper.connection.cursor()
        cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgres" else "SELECT CONNECTION_ID()")
        return cursor.fetchone()[0]

    def arm():
        monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit_and_lose)
        wrapping.enter_context(connection.execute_wrapper(write_and_lose))
        return used

    with ExitStack() as wrapping:
        yield arm
