"""A thread that waits for the database can be cut off by another one."""

import logging
import threading

import pytest
from django.db import Error, connection, connections

from jobqueue.db import fault_vendor, is_lost_connection, time_limit
from jobqueue.db.time_limit import StatementTimer, StuckStatements, watched
from jobqueue.wakeup.notifiers import PostgresSubscription
from tests.holeproxy import HoleProxy
from tests.marks import committed, finding
from tests.patience import patient, wait_until
from tests.process.harness import kill_sessions
from tests.settings import VENDOR

pytestmark = committed
SERVER = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no connection that could hang")
SLEEP = "SELECT pg_sleep(600)" if VENDOR == "postgres" else "SELECT SLEEP(600)"


class Waiting(threading.Thread):
    """Waits on a connection of its own for an answer that does not come."""

    def __init__(self, around):
        super().__init__(daemon=True)
        self.around, self.sent, self.error = around, threading.Event(), None
        self.start()
        assert self.sent.wait(patient())

    def run(self):
        one = connections["default"]
        try:
            with self.around(one), one.cursor() as cursor, one.execute_wrapper(self.send):
                cursor.execute(SLEEP)
        except Error as error:
            self.error = error
        finally:
            one.close()

    def send(self, execute, *statement):
        self.sent.set()
        return execute(*statement)

    def is_lost(self):
        """Whether the error that it got says that the connection was lost."""
        self.join(patient())
        return is_lost_connection(self.error, "default")


@pytest.fixture
def stuck(monkeypatch):
    """The stuck statements of this process for one test; cut after 0.2 s, however seldom cut() is called."""
    stuck = StuckStatements("w", 0)
    stuck._seconds = 0.2
    monkeypatch.setattr(time_limit, "_stuck", stuck)
    monkeypatch.setattr(time_limit, "SECONDS_MIN", 600.0)
    if option := fault_vendor("default").opening_option:
        # watched() sets it where nobody has, and all later connections of this process would have a second to open.
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], option, 600)
    return stuck


@pytest.fixture
def sleepers():
    """A server may not notice that nobody waits for the end of a statement."""
    yield
    wait_until(lambda: not kill_sessions(), what="the end of other sessions")


@SERVER
@finding("A5")
def test_a_thread_that_waits_inside_a_driver_meets_a_lost_connection(sleepers):
    found = []

    def around(one):
        found.append(StatementTimer(one))
        return found[0]

    waiting = Waiting(around)
    found[0].end_session()
    assert waiting.is_lost()


@SERVER
@finding("A5")
def test_each_cut_of_a_thread_is_logged_once_and_makes_its_next_one_later(stuck, sleepers, caplog):
    waiting = Waiting(watched)
    with caplog.at_level(logging.ERROR, "jobqueue.db"):
        wait_until(lambda: stuck.cut() or caplog.messages, what="the cut")
        assert waiting.is_lost()
        stuck.cut()
    (message,) = caplog.messages
    assert "the database has not answered" in message
    assert stuck._limits == {waiting.name: 0.4}


@finding("A5")
def test_a_thread_that_stood_still_with_the_whole_process_is_not_cut(stuck):
    stuck._seconds = 600.0
    with watched(connection):
        (timer,) = stuck.timers
        timer.since -= 3600
        stuck._looked_at -= 3600
        stuck.cut()
        assert not timer.was_cut


@finding("A5")
def test_what_a_statement_had_waited_before_each_standstill_of_its_process_counts(stuck):
    stuck._seconds = 600.0
    with watched(connection):
        (timer,) = stuck.timers
        stuck._looked_at = timer.since
        for _ in range(3):
            timer.since -= 100
            timer.since -= 3600
            stuck._looked_at -= 3600
            stuck.cut()
        assert round(stuck._looked_at - timer.since) == 300
        assert not timer.was_cut


def test_a_connection_without_a_statement_is_not_cut(stuck):
    with watched(connection), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    stuck._seconds = -1.0
    stuck.cut()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert (stuck.timers, stuck._limits) == (set(), {})


@pytest.mark.skipif(VENDOR != "postgres", reason="only PostgreSQL notifies")
@finding("A5")
def test_a_subscription_that_gets_no_answer_closes_its_connection(stuck, monkeypatch):
    settings = connection.settings_dict
    proxy = HoleProxy(int(settings["PORT"]))
    monkeypatch.setitem(settings, "HOST", "127.0.0.1")
    monkeypatch.setitem(settings, "PORT", str(proxy.port))
    subscription = PostgresSubscription("default")
    proxy.arm(rb"SELECT 1")
    looking = threading.Thread(target=lambda: wait_until(lambda: stuck.cut() or stuck._limits), daemon=True)
    looking.start()
    try:
        with pytest.raises(Error):
            subscription.check()
    finally:
        looking.join()
        subscription.close()
        proxy.close()
