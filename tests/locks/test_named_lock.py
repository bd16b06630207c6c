"""named_lock(): a name of the server's, for as long as this connection lives."""

import asyncio
import threading
from contextlib import suppress

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction

from jobqueue.db.mysql.locks import cluster_problem
from jobqueue.exceptions import InsideTransaction, LockLost, LockNotAcquired, LockNotHeld, NotSupported
from jobqueue.locks import named_lock
from jobqueue.locks.named import NamedLock
from tests.faults.conftest import kill, session_id
from tests.locks.helpers import astay, begun_to_wait
from tests.marks import finding
from tests.patience import patient, wait_until
from tests.races.actors import Actor
from tests.settings import VENDOR

#: in a transaction that is rolled back, which is fast; and with real commits, for those who have company
plain, real = pytest.mark.django_db, pytest.mark.django_db(transaction=True)
server = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no locks by name")


def held_elsewhere(name="k"):
    """What another session gets at once: LockNotAcquired while somebody holds the name."""

    def attempt():
        with named_lock(name, 0):
            return "free"

    return Actor(attempt).outcome()


def is_waited_for():
    """Whether the server says that somebody waits for a name."""
    waits = {"postgres": "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"}.get(
        VENDOR, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'"
    )
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute(waits)
            return cursor.fetchone()[0] > 0
    finally:
        other.close()


def freed_by_the_server(name="k"):
    """Whether the name is free as soon as the server has noticed that its holder's session has ended."""
    return wait_until(lambda: held_elsewhere(name) == "free", what="the end of the session that held the name")


@plain
@pytest.mark.skipif(VENDOR != "sqlite", reason="the others have them")
def test_on_sqlite_it_is_refused_with_a_reason():
    with pytest.raises(NotSupported, match=r"SQLite has no locks by name.*lease_lock\(\)"), named_lock("k", 0):
        pytest.fail("there is no such lock")


@plain
@server
def test_a_block_holds_it_and_gives_it_back():
    with named_lock("k", 0):
        assert isinstance(held_elsewhere(), LockNotAcquired)
        assert held_elsewhere("other") == "free"
    assert held_elsewhere() == "free"


@plain
@server
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_it_is_released_on_every_error_path(error):
    with pytest.raises(error), named_lock("k", 0):
        raise error
    assert held_elsewhere() == "free"


@plain
@server
def test_it_is_released_after_a_failed_statement_and_a_rolled_back_transaction():
    with pytest.raises(Exception, match="nowhere"), named_lock("k", 0):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT * FROM nowhere")
    assert held_elsewhere() == "free"


@real
@server
@pytest.mark.parametrize("timeout_seconds", [None, 600])
def test_a_waiter_gets_it_when_it_is_released(timeout_seconds):
    with named_lock("k", 0):
        waiter = Actor(lambda: named_lock("k", timeout_seconds).acquire().name)
        wait_until(lambda: is_waited_for() or waiter.done.is_set(), what="the wait, or the end")
        assert not waiter.done.is_set()
    assert waiter.result() == "k"
    # The waiter's connection has ended, and with it the lock it never released.
    assert freed_by_the_server()


@plain
@server
def test_waiting_ends_in_time():
    with named_lock("k", 0):

        def wait():
            with pytest.raises(LockNotAcquired, match=r"within 0\.3 s"):
                named_lock("k", 0.3).acquire()

        Actor(wait).result()


@plain
@server
@pytest.mark.parametrize("other", ["K", "k ", "\uff4b", "x" * 255, "k\u0301", "'; --"])
def test_names_that_look_alike_or_are_long_are_others(other):
    with named_lock("k", 0), named_lock(other, 0) as second:
        assert len(second.server_name) <= 64
        assert isinstance(held_elsewhere(other), LockNotAcquired)
        assert held_elsewhere(other + "y" if len(other) < 255 else "x" * 254) == "free"


@plain
@server
@finding("L20")
def test_the_same_connection_cannot_hold_it_twice():
    with named_lock("k", 0):
        with pytest.raises(RuntimeError, match="this connection holds it already") as caught:
            named_lock("k", None).acquire()
        assert not isinstance(caught.value, LockNotAcquired)
        assert isinstance(held_elsewhere(), LockNotAcquired)
    assert held_elsewhere() == "free"


@plain
@server
def test_releasing_twice_says_so():
    lock = named_lock("k", 0).acquire()
    lock.release()
    with pytest.raises(LockNotHeld, match="released already"):
        lock.release()


@plain
@server
def test_who_does_not_hold_it_cannot_release_it():
    with named_lock("k", 0):
        with pytest.raises(LockNotHeld, match="never acquired"):
            named_lock("k", 0).release()
        assert isinstance(held_elsewhere(), LockNotAcquired)


@plain
@server
def test_inside_a_transaction_it_is_refused_because_it_would_end_before_the_commit():
    with transaction.atomic(), pytest.raises(InsideTransaction, match="before the commit"):
        named_lock("k", 0).acquire()
    assert held_elsewhere() == "free"


@real
@server
@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_connection_lost_inside_the_block_says_that_the_lock_was_lost(how):
    def lose():
        with named_lock("k", 0):
            if how == "close":
                connection.close()
                connection.ensure_connection()
            else:
                kill(session_id())

    with pytest.raises(LockLost, match="its connection was closed or broke"):
        lose()
    assert freed_by_the_server()
    with named_lock("k", 0):
        assert isinstance(held_elsewhere(), LockNotAcquired)


@real
@server
def test_an_error_of_the_block_on_a_lost_connection_is_let_out_with_a_note():
    def lose():
        with named_lock("k", 0):
            kill(session_id())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        lose()
    assert "its connection was closed or broke" in caught.value.__notes__[0]


@real
@server
def test_a_wait_that_is_cut_short_leaves_nothing_behind(monkeypatch):
    attempt = NamedLock._attempt

    def interrupted(self, entry, wait_seconds):
        assert attempt(self, entry, wait_seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(NamedLock, "_attempt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        named_lock("k", 0).acquire()
    monkeypatch.undo()
    assert freed_by_the_server()


@real
@pytest.mark.skipif(VENDOR != "postgres", reason="a pooler is PostgreSQL's")
@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [("DISABLE_SERVER_SIDE_CURSORS", True, "PgBouncer"), ("OPTIONS", {"pool": True}, "whoever gets the session next")],
)
def test_where_others_get_the_session_it_is_refused(monkeypatch, setting, value, words):
    # What is wrong with a session is asked once.
    connection.close()
    connection.ensure_connection()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, setting, value)
        with pytest.raises(NotSupported, match=words):
            named_lock("k", 0).acquire()
    connection.close()


@plain
@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="one set of names per server is MySQL's")
def test_another_database_of_the_same_server_has_names_of_its_own(monkeypatch):
    name = named_lock("k", 0).server_name
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", "elsewhere")
    assert named_lock("k", 0).server_name != name


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"wsrep_on": "ON", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, "Galera"),
        ({"wsrep_on": "ON", "wsrep_provider": "none"}, None),
        ({"wsrep_on": "OFF", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, None),
        ({"group_replication_group_name": "aa", "group_replication_single_primary_mode": "OFF"}, "several primaries"),
        ({"group_replication_group_name": "aa", "group_replication_single_primary_mode": "ON"}, None),
        ({"group_replication_group_name": "", "group_replication_single_primary_mode": "OFF"}, None),
        ({}, None),
    ],
)
def test_a_cluster_is_told_by_its_variables(variables, problem):
    found = cluster_problem(variables)
    assert found is problem or problem in found


@plain
@server
def test_a_coroutine_that_holds_it_is_refused_a_second_time():
    async def run():
        async with named_lock("k", 0):
            with pytest.raises(RuntimeError, match="this connection"):
                await named_lock("k", 5).aacquire()
            await asyncio.sleep(0)
        async with named_lock("k", 0):
            pass

    async_to_sync(run)()
    assert held_elsewhere() == "free"


@real
@server
@finding("H4")
def test_coroutines_that_begin_together_are_inside_one_after_the_other():
    log = []

    async def work():
        async with named_lock("k", patient()):
            log.append("in")
            await astay()
            log.append("out")

    async def run():
        await asyncio.gather(work(), work())

    async_to_sync(run)()
    assert log == ["in", "out"] * 2
    assert held_elsewhere() == "free"


@real
@server
def test_a_coroutine_that_is_canceled_while_it_waits_ends_no_other_lock_of_its_connection():
    async def run():
        async with named_lock("k", 10):
            waiting = await begun_to_wait(named_lock("elsewhere", 600))
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting

    holds, leave = threading.Event(), threading.Event()

    def hold():
        with named_lock("elsewhere", 0):
            holds.set()
            leave.wait(4 * patient())

    holder = Actor(hold)
    assert holds.wait(patient())
    async_to_sync(run)()
    leave.set()
    holder.result()
    assert held_elsewhere("elsewhere") == "free"


@real
@server
def test_a_connection_that_was_ended_while_it_was_idle_is_replaced():
    kill(session_id())
    with named_lock("k", 0):
        assert isinstance(held_elsewhere(), LockNotAcquired)
