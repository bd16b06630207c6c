"""aenqueue() and aget_result(): refusals on the event loop, then one call in Django's thread."""

import asyncio
import threading
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import ClassVar

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from jobqueue.backends import JobQueueBackend
from jobqueue.base.compat import TaskResultDoesNotExist, TaskResultStatus, signals
from jobqueue.exceptions import InvalidValue, PayloadError, PayloadTooLarge
from jobqueue.models import Job
from jobqueue.signals import job_enqueued
from jobqueue.transitions import ack
from tests.app import tasks
from tests.factories import claim_one
from tests.marks import committed
from tests.patience import patient

caller = ContextVar("caller", default=None)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the calls that go to threads."""

    hops = 0

    def run_in_executor(self, *args):
        self.hops += 1
        return super().run_in_executor(*args)


def on_a_loop(work, hops=None):
    """What work() gives, on a loop of its own whose calls in threads have connections of their own."""

    async def closing():
        # Earlier tests may have left one in the thread that all loops share, and ended its session.
        await sync_to_async(connections.close_all)()
        before = asyncio.get_running_loop().hops
        try:
            return await asyncio.wait_for(work(), patient())
        finally:
            if hops is not None:
                assert asyncio.get_running_loop().hops - before == hops
            await sync_to_async(connections.close_all)()

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        return runner.run(closing())


@contextmanager
def busy_thread():
    """Django's thread for synchronous calls has something else to do within the block."""
    free, begun = threading.Event(), threading.Event()

    def wait():
        begun.set()
        assert free.wait(patient())

    call = asyncio.ensure_future(sync_to_async(wait)())
    try:
        yield begun, call
    finally:
        free.set()


@contextmanager
def received(receiver, signal=signals.task_enqueued):
    signal.connect(receiver)
    try:
        yield
    finally:
        signal.disconnect(receiver)


def keyed(a, b):
    """On the caller's loop there is a running task; in a thread there is none."""
    return f"{asyncio.current_task().get_name()}-{caller.get()}"


BAD = {
    "not JSON": (tasks.add, (1, object()), PayloadError),
    "too large": (tasks.add, (1, "x" * 1_100_000), PayloadTooLarge),
    "a key that is too long": (tasks.add.using(dedupe_key=lambda a, b: "x" * 65), (1, 2), InvalidValue),
    "a key function that fails": (tasks.add.using(dedupe_key=lambda a, b: 1 / a), (0, 2), ZeroDivisionError),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_while_the_thread_is_busy(what):
    task, arguments, error = BAD[what]

    async def work():
        with busy_thread() as (_begun, call):
            with pytest.raises(error):
                await task.aenqueue(*arguments)
            assert not call.done()

    on_a_loop(work)


@pytest.mark.parametrize("malformed", ["x", "", "1.0", None, 2**63, "9" * 20])
def test_a_malformed_id_is_refused_while_the_thread_is_busy(malformed):
    async def work():
        with busy_thread() as (_begun, call):
            with pytest.raises(TaskResultDoesNotExist):
                await tasks.add.aget_result(malformed)
            assert not call.done()

    on_a_loop(work)


@committed
@pytest.mark.parametrize("fields", [{}, {"dedupe_key": "k"}, {"expires": 60}], ids=["plain", "keyed", "expiring"])
def test_an_enqueue_is_one_call_in_a_thread(fields):
    assert int(on_a_loop(lambda: tasks.add.using(**fields).aenqueue(1, 2), hops=1).id) == Job.objects.get().pk


@committed
def test_a_look_is_one_call_in_a_thread():
    made = tasks.add.enqueue(1, 2)
    assert on_a_loop(lambda: tasks.add.aget_result(made.id), hops=1).id == made.id
    ack(claim_one(queue="default"), result=3)
    on_a_loop(made.arefresh, hops=1)
    assert (made.status, made.return_value) == (TaskResultStatus.SUCCESSFUL, 3)


@committed
def test_a_key_function_runs_in_the_callers_context():
    async def work():
        caller.set("me")
        asyncio.current_task().set_name("request")
        return await tasks.add.using(dedupe_key=keyed).aenqueue(1, 2)

    on_a_loop(work)
    assert bytes(Job.objects.get().dedupe_key) == b"request-me"


@pytest.mark.django_db
def test_an_enqueue_joins_the_transaction_around_the_loop():
    with suppress(ZeroDivisionError), transaction.atomic():
        async_to_sync(tasks.add.aenqueue)(1, 2)
        assert Job.objects.count() == 1
        raise ZeroDivisionError
    assert Job.objects.count() == 0


@committed
def test_receivers_hear_of_a_job_once_coroutines_on_the_callers_loop():
    heard = []

    async def on_the_loop(task_result, **_):
        await asyncio.sleep(0)
        heard.append((task_result.id, asyncio.get_running_loop()))

    def in_the_thread(task_result, **_):
        heard.append((task_result.id, threading.current_thread() is threading.main_thread()))

    async def work():
        return await tasks.add.aenqueue(1, 2), asyncio.get_running_loop()

    with received(on_the_loop), received(in_the_thread):
        result, loop = on_a_loop(work)
    assert sorted(heard, key=str) == sorted([(result.id, loop), (result.id, False)], key=str)


@committed
def test_a_caller_that_is_cancelled_before_its_turn_adds_nothing():
    async def work():
        with busy_thread() as (begun, call):
            assert await asyncio.to_thread(begun.wait, patient())
            loop = asyncio.get_running_loop()
            before = loop.hops
            adding = asyncio.ensure_future(tasks.add.aenqueue(1, 2))
            while loop.hops == before:
                await asyncio.sleep(0)
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
        await call

    on_a_loop(work)
    assert Job.objects.count() == 0


@committed
def test_a_caller_that_is_cancelled_in_the_middle_adds_one_job_and_its_signal():
    inside, on, heard = threading.Event(), threading.Event(), []

    def hold(job_id, **_):
        inside.set()
        assert on.wait(patient())

    def note(task_result, **_):
        heard.append(task_result.id)

    async def work():
        adding = asyncio.ensure_future(tasks.add.aenqueue(1, 2))
        assert await asyncio.to_thread(inside.wait, patient())
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert heard == []
        on.set()

    with received(hold, job_enqueued), received(note):
        on_a_loop(work)
    assert heard == [str(Job.objects.get().pk)]


class Noting(JobQueueBackend):
    """A project's own backend, which knows nothing of event loops."""

    calls: ClassVar[list[str]] = []

    def enqueue(self, task, args, kwargs):
        self.calls.append("enqueue")
        return super().enqueue(task, args, kwargs)

    def get_result(self, result_id):
        self.calls.append("get_result")
        return super().get_result(result_id)


@pytest.mark.django_db
def test_what_a_subclass_adds_to_a_synchronous_twin_is_not_left_out(settings):
    settings.TASKS = {"default": {"BACKEND": f"{__name__}.Noting"}}
    made = async_to_sync(tasks.add.aenqueue)(1, 2)
    async_to_sync(made.arefresh)()
    assert Noting.calls == ["enqueue", "get_result"]
