"""A coroutine that is canceled at any of its awaits leaves no lock behind, whatever the thread of the database does."""

import asyncio
import importlib
import inspect
import pkgutil
import threading
import time
import types

import pytest
from asgiref.sync import async_to_sync, sync_to_async

import jobqueue
from jobqueue.locks.lease import LeaseLock
from jobqueue.locks.named import NamedLock
from jobqueue.locks.redis import RedisLock, _client
from tests.locks.helpers import make_lock
from tests.marks import finding
from tests.patience import patient
from tests.races.actors import Actor
from tests.settings import VENDOR

real = pytest.mark.django_db(transaction=True)
#: each kind that this database can try; Redis has no part in the others
KINDS = {"lease": LeaseLock} | ({"redis": RedisLock} if VENDOR == "sqlite" else {"named": NamedLock})
#: more than any of the blocks below has
AWAITS_MAX = 200


@pytest.fixture(params=KINDS)
def kind(request, settings):
    """Every lock that is an async context manager."""
    if request.param == "redis":
        settings.JOBQUEUE = {"REDIS_URL": request.getfixturevalue("redis_url")}
        _client.cache_clear()
    return request.param


@types.coroutine
def stepping(work, before, after):
    """`work`, with a call of `before(n)` ahead of each step and of `after(n)` when it has come to its n-th await."""
    number, value, error = 0, None, None
    while True:
        number += 1
        before(number)
        try:
            waiting = work.send(value) if error is None else work.throw(error)
        except StopIteration as end:
            return end.value
        after(number)
        value = error = None
        try:
            value = yield waiting
        except BaseException as thrown:
            error = thrown


async def cancel_at(number, work, *, busy):
    """Whether `work` came to its `number`-th await and was canceled there; `busy`: the thread has other work then."""
    others = []

    def before(step):
        # Another coroutine's query begins while the step before goes on, so the one that is canceled waits behind it.
        if step == max(1, number - 1) and busy:
            others.append(asyncio.ensure_future(sync_to_async(time.sleep)(0.03)))

    def after(step):
        if step == number:
            task.cancel()

    async def stepped():
        return await stepping(work, before, after)

    task = asyncio.ensure_future(stepped())
    try:
        await task
    except asyncio.CancelledError:
        return True
    finally:
        await asyncio.gather(*others)
    return False


def nobody_holds(kind):
    """Get the lock at once by another thread, and give it back."""
    with make_lock(kind, "k", 0):
        return True


def cancel_everywhere(kind, work, *, busy):
    """Cancel `work` at each await; how many there were."""
    for number in range(1, AWAITS_MAX):
        canceled = async_to_sync(cancel_at)(number, work(), busy=busy)
        assert Actor(nobody_holds, kind).result(), number
        if not canceled:
            return number - 1
    raise AssertionError("the block does not come to an end")


@real
@finding("H2")
def test_a_block_that_is_canceled_at_any_await_beside_a_slow_query_leaves_nothing_held(kind):
    async def work():
        async with make_lock(kind, "k", 0):
            await asyncio.sleep(0)

    assert cancel_everywhere(kind, work, busy=True) >= 4


@real
def test_a_block_that_is_canceled_at_any_await_leaves_nothing_held(kind):
    async def work():
        async with make_lock(kind, "k", 0) as lock:
            if kind != "named":
                await lock.arenew()
            await asyncio.sleep(0)

    assert cancel_everywhere(kind, work, busy=False) >= 4


@real
@finding("H2")
def test_single_steps_that_are_canceled_at_any_await_leave_nothing_held(kind):
    async def work():
        lock = await make_lock(kind, "k", 0).aacquire()
        await lock.arelease()

    assert cancel_everywhere(kind, work, busy=True) >= 3


@real
@finding("H2")
def test_a_time_limit_around_a_block_ends_it_and_the_lock_beside_a_slow_query(kind):
    async def run():
        async with asyncio.timeout(0.1):
            async with make_lock(kind, "k", 0):
                slow.append(asyncio.ensure_future(sync_to_async(time.sleep)(0.3)))
                await asyncio.sleep(0.01)

    async def main():
        with pytest.raises(TimeoutError):
            await run()
        await asyncio.gather(*slow)

    slow = []
    async_to_sync(main)()
    assert Actor(nobody_holds, kind).result()


@real
def test_an_error_of_the_release_is_kept_as_a_note_of_the_cancelation():
    from jobqueue.locks.lock import run_shielded

    canceled = threading.Event()

    def fail():
        assert canceled.wait(patient())
        raise ZeroDivisionError("late")

    async def run():
        task = asyncio.ensure_future(run_shielded(fail))
        await asyncio.sleep(0)
        task.cancel()
        canceled.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        return caught.value.__notes__

    assert async_to_sync(run)() == ["Also: late"]


def test_every_async_context_manager_of_the_package_is_tried_here():
    found = set()
    for module in pkgutil.walk_packages(jobqueue.__path__, "jobqueue."):
        if ".migrations" in module.name or ".management" in module.name:
            continue
        for thing in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(thing) and thing.__module__.startswith("jobqueue.") and hasattr(thing, "__aenter__"):
                found.add(thing.__name__)
    # Those that begin with _ are lease locks of our own, which no coroutine takes.
    assert {name for name in found if name[0] != "_"} == {"Lock", "TimedLock", "LeaseLock", "NamedLock", "RedisLock"}
