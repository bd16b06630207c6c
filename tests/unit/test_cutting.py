"""A thread that waits for the database is cut off by another one."""

import logging
import threading
import time

import pytest
from django.db import Error, connection, connections

from jobqueue.db import Fault, cutting, fault_vendor
from jobqueue.db.cutting import Wait, Waits, watched
from jobqueue.doorbell.notify import NotifyEar
from tests.factories import wait_until
from tests.holeproxy import HoleProxy
from tests.marks import committed, finding
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
        assert self.sent.wait(60)

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

    def fault(self):
        """What it met."""
        self.join(60)
        return fault_vendor("default").fault(self.error)


@pytest.fixture
def waits(monkeypatch):
    """Those of this process for one test, cut after 0.2 s however seldom that is tried."""
    waits = Waits("w", 0)
    waits._seconds = 0.2
    monkeypatch.setattr(cutting, "_waits", waits)
    monkeypatch.setattr(cutting, "SECONDS_MIN", 600.0)
    return waits


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
        found.append(Wait(one))
        return found[0]

    waiting = Waiting(around)
    found[0].end()
    assert waiting.fault() is Fault.GONE


@SERVER
@finding("A5")
def test_each_cut_of_a_thread_is_told_once_and_makes_its_next_one_later(waits, sleepers, caplog):
    waiting = Waiting(watched)
    with caplog.at_level(logging.ERROR, "jobqueue.db"):
        wait_until(lambda: waits.cut() or caplog.messages, what="the cut")
        assert waiting.fault() is Fault.GONE
        waits.cut()
    (message,) = caplog.messages
    assert "the database has not answered" in message
    assert waits._limits == {waiting.name: 0.4}


def test_a_thread_that_stood_still_with_the_whole_process_is_not_cut(waits):
    waits._seconds = 600.0
    with watched(connection):
        (wait,) = waits._waits
        wait.since -= 3600
        waits._looked_at -= 3600
        waits.cut()
        assert not wait.was_cut


@finding("A5")
def test_what_a_thread_had_waited_before_each_standstill_of_its_process_counts(waits):
    waits._seconds = 600.0
    with watched(connection):
        (wait,) = waits._waits
        for _ in range(3):
            wait.since -= 100
            wait.since -= 3600
            waits._looked_at -= 3600
            waits.cut()
        assert 290 < time.monotonic() - wait.since < 3600
        assert not wait.was_cut


def test_who_does_not_wait_is_not_cut(waits):
    with watched(connection), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    waits._seconds = -1.0
    waits.cut()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert (waits._waits, waits._limits) == (set(), {})


@pytest.mark.skipif(VENDOR != "postgres", reason="only PostgreSQL notifies")
@finding("A5")
def test_a_listener_that_gets_no_sign_of_life_gives_its_connection_up(waits, monkeypatch):
    settings = connection.settings_dict
    proxy = HoleProxy(int(settings["PORT"]))
    monkeypatch.setitem(settings, "HOST", "127.0.0.1")
    monkeypatch.setitem(settings, "PORT", str(proxy.port))
    ear = NotifyEar("default")
    proxy.arm(rb"SELECT 1")
    looking = threading.Thread(target=lambda: wait_until(lambda: waits.cut() or waits._limits), daemon=True)
    looking.start()
    try:
        with pytest.raises(Error):
            ear.check()
    finally:
        looking.join()
        ear.close()
        proxy.close()
