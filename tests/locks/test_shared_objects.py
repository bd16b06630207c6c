"""One lock object, used by several threads, coroutines or processes, as a module would keep it."""

import asyncio
import os
import threading
import traceback

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections

from jobqueue.exceptions import LockLost, LockNotHeld
from jobqueue.locks import lease_lock, named_lock
from jobqueue.locks.redis import _client
from jobqueue.models import LockRow
from tests.locks.helpers import astay, expire, make_lock, row, stay
from tests.marks import finding
from tests.patience import patient, wait_until
from tests.races.actors import Actor, all_at_once
from tests.settings import VENDOR

real = pytest.mark.django_db(transaction=True)
server = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no locks by name")
KINDS = ["lease", "redis"] if VENDOR == "sqlite" else ["lease", "named"]


@pytest.fixture(params=KINDS)
def kind(request, settings):
    """Every kind of lock that this database can try; Redis has no part in the others."""
    if request.param == "redis":
        settings.JOBQUEUE = {"REDIS_URL": request.getfixturevalue("redis_url")}
        _client.cache_clear()
    return request.param


class Room:
    """Counts who is inside."""

    def __init__(self):
        self.inside = self.most = 0
        self.fences = []

    def enter(self):
        self.inside += 1
        self.most = max(self.most, self.inside)

    def leave(self):
        self.inside -= 1


@real
@finding("H4")
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite's writers take turns, so the next test shows it there")
def test_threads_that_share_one_object_are_inside_one_at_a_time():
    lock, room = lease_lock("shared", 60, patient()), Room()

    def turns():
        for _ in range(5):
            with lock:
                room.enter()
                room.fences.append(lock.fence)
                # Long enough for somebody who may come in to do so.
                stay()
                room.leave()

    assert all_at_once([turns] * 4) == [None] * 4
    assert room.most == 1
    assert room.fences == sorted(set(room.fences))


@real
def test_threads_that_share_one_object_of_any_kind_all_get_their_turns(kind):
    lock, room = make_lock(kind, "shared", patient()), Room()

    def turns():
        for _ in range(3):
            with lock:
                room.enter()
                stay()
                room.leave()

    assert all_at_once([turns] * 4) == [None] * 4
    assert room.most == 1


@real
@finding("H4")
def test_coroutines_that_share_one_object_are_inside_one_at_a_time(kind):
    lock, room = make_lock(kind, "shared", patient()), Room()

    async def turn():
        async with lock:
            room.enter()
            await astay()
            room.leave()

    async def run():
        return await asyncio.gather(*(turn() for _ in range(5)), return_exceptions=True)

    assert async_to_sync(run)() == [None] * 5
    assert room.most == 1


@real
@finding("H4")
def test_a_second_thread_waits_while_the_first_one_holds_the_same_object(kind):
    lock = make_lock(kind, "shared", patient())

    def turn():
        with lock:
            return "inside"

    with lock:
        other = Actor(turn)
        assert other.stays_away()
    assert other.result() == "inside"


@real
@finding("H4")
def test_an_overtaken_holder_keeps_its_own_fence_though_the_next_one_uses_the_same_object():
    lock = lease_lock("k", 60, 0).acquire()
    mine = lock.fence
    expire()
    overtaken, leave = threading.Event(), threading.Event()

    def next_holder():
        with lock:
            overtaken.set()
            assert leave.wait(4 * patient())
            return lock.fence

    other = Actor(next_holder)
    wait_until(lambda: overtaken.is_set() or other.done.is_set(), what="the next holder")
    assert overtaken.is_set(), other.outcome()
    assert lock.fence == mine
    before = row()
    with pytest.raises(LockLost):
        lock.release()
    assert row() == before
    leave.set()
    assert other.result() > mine


@real
def test_a_helper_thread_may_renew_and_release_what_its_only_holder_has():
    lock = lease_lock("k", 60, 0).acquire()
    assert Actor(lambda: (lock.renew(600), lock.fence)).result()[1] == lock.fence
    Actor(lock.release).result()
    assert row()["owner_token"] is None
    with pytest.raises(LockNotHeld, match="released already"):
        lock.release()


@real
def test_a_task_that_was_made_only_to_wait_hands_its_lock_on():
    async def run():
        lock = lease_lock("k", 60, 0)
        for _ in range(2):
            # In Python 3.11 this makes a task of its own, which has ended when the lock is had.
            await asyncio.wait_for(lock.aacquire(), patient())
            await asyncio.create_task(lock.arenew())
            await lock.arelease()

    async_to_sync(run)()
    assert row()["owner_token"] is None


@real
@server
@finding("M7")
def test_another_thread_cannot_release_a_named_lock_and_its_owner_can():
    lock = named_lock("k", 0).acquire()
    refused = Actor(lock.release).outcome()
    assert isinstance(refused, LockNotHeld)
    assert not isinstance(refused, LockLost)
    assert "held by thread" in str(refused)
    lock.release()
    assert Actor(lambda: named_lock("k", 0).acquire().name).result() == "k"


@real
@server
def test_a_named_lock_whose_thread_has_ended_was_lost():
    lock = named_lock("k", 0)
    Actor(lock.acquire).result()
    with pytest.raises(LockLost):
        lock.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@finding("R6")
@real
def test_a_forked_process_that_leaves_the_block_does_not_release_its_parents_lock():
    lock = lease_lock("k", 60, 0)
    connection.close()
    reading, writing = os.pipe()
    with lock:
        connection.close()
        child = os.fork()
        if child == 0:
            _leave_in_child(lock, writing)
        os.close(writing)
        with os.fdopen(reading) as told:
            assert told.read() == "LockNotHeld: forked"
        os.waitpid(child, 0)
        assert LockRow.objects.filter(pk="k", owner_token__isnull=False).exists()
        lock.renew()
    assert row()["owner_token"] is None


def _leave_in_child(lock, writing):
    """End this process without unwinding the test's own stack; tell what the release said."""
    said = "nothing"
    try:
        connections.close_all()
        lock.__exit__(None, None, None)
    except Exception as error:
        said = f"{type(error).__name__}: {'forked' if 'forked' in str(error) else traceback.format_exc()}"
    finally:
        connections.close_all()
        os.write(writing, said.encode())
        os._exit(0)
