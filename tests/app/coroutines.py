"""Coroutine tasks and handlers that meet, wait, fail and misbehave on the loop they share."""

import asyncio
import os
import threading
import time

from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

from jobqueue import current_job, enqueue, handler, task
from jobqueue.models import Job
from tests.app.tasks import STRANGE, note

_met = asyncio.Event()
_arrived = _running = 0


@task
async def meet(count):
    """Goes on only when `count` of these run in one process at the same time."""
    global _arrived
    note("start")
    _arrived += 1
    if _arrived == count:
        _met.set()
    await _met.wait()
    note("effect")


@task
async def crowd():
    """Tells how many of these run now."""
    global _running
    _running += 1
    note("running", _running)
    await asyncio.sleep(0.01)
    _running -= 1


@task
async def double(a):
    note("effect")
    return a * 2


@task
async def gated(path):
    """Runs until a file appears: the test decides when it ends."""
    note("start")
    while not os.path.exists(path):
        await asyncio.sleep(0.01)
    note("effect")


@task(ack_each=True)
async def gated_and_acked(path):
    note("start")
    while not os.path.exists(path):
        await asyncio.sleep(0.01)
    note("ends")


@task(takes_context=True)
async def patient(context, seconds):
    note("start")
    until = time.monotonic() + seconds
    while time.monotonic() < until and not context.should_stop:
        await asyncio.sleep(0.02)
    note("effect", int(context.should_stop))


@task(takes_context=True)
async def patient_at(context, path):
    """Until it is told to stop, or a file appears."""
    note("start")
    while not os.path.exists(path) and not context.should_stop:
        await asyncio.sleep(0.02)
    note("effect", int(context.should_stop))


@task(takes_context=True)
async def who(context):
    """The job's id as seen from everywhere."""
    from_thread = await sync_to_async(lambda: current_job().job_id)()
    return [context.job_id, current_job().job_id, from_thread, context.attempt]


@task(takes_context=True, max_attempts=1)
async def counts(context, total):
    """Reports its progress after every step: once waiting for it, and then as it goes."""
    await context.aprogress(1, total)
    note("told", context.untold)
    for done in range(2, total + 1):
        context.progress(done, total)


@handler("async-webhooks")
async def deliver(payload):
    note("effect", payload["n"])
    return {"seen": payload["n"]}


@task(timeout_seconds=0.5, max_attempts=1)
async def overlong():
    # The first await is inside: the limit of a busy machine may be over when it is reached.
    try:
        note("start")
        await asyncio.sleep(600)
    finally:
        note("cleanup")


@task(ack_each=True)
async def count_done():
    from jobqueue.models import Job

    return await Job.objects.filter(status=Job.Status.DONE).acount()


@task(hard_timeout_seconds=1.0, max_attempts=2)
async def stuck():
    note("start")
    await asyncio.sleep(600)


@task(hard_timeout_seconds=1.0, max_attempts=1)
async def blocking():
    """Blocks the loop: no other coroutine of the process goes on."""
    note("start")
    time.sleep(600)


@task
async def blocking_for_ever():
    note("start")
    time.sleep(600)


async def _cancel_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(600)


async def _leave_from_a_task():
    async def leave():
        raise SystemExit(3)

    await asyncio.create_task(leave())


async def _stop_the_loop():
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    raise ValueError("the loop went on")


async def _raise_cancelled():
    raise asyncio.CancelledError


async def _interrupt():
    raise KeyboardInterrupt


ODD = {
    "cancelled": _raise_cancelled,
    "cancels itself": _cancel_itself,
    "interrupt": _interrupt,
    "leave from a task": _leave_from_a_task,
    "stop the loop": _stop_the_loop,
}


@task(max_attempts=1)
async def strange(kind):
    note("start")
    if kind in ODD:
        await ODD[kind]()
    raise STRANGE[kind]()


@task(max_attempts=1)
async def cancels_everybody():
    note("start")
    for running in asyncio.all_tasks():
        running.cancel()


@task
async def leaves_a_task_behind(path):
    """The task that it starts would note an effect as soon as the file appears."""

    async def behind():
        note("start")
        try:
            while not os.path.exists(path):
                await asyncio.sleep(0.01)
            note("effect")
        finally:
            note("cleanup")

    left = asyncio.create_task(behind())
    await asyncio.sleep(0)
    return not left.done()


@task(max_attempts=1)
async def leaves_a_transaction_open():
    note("start")
    await sync_to_async(transaction.set_autocommit)(False)
    note("effect")


@task
async def writes(rounds):
    """Enqueues `rounds` raw rows, each in a call of its own; the threads it was in."""
    note("start")
    threads = set()

    def write():
        threads.add(threading.get_ident())
        with transaction.atomic():
            enqueue("written", {})

    for _ in range(rounds):
        await sync_to_async(write)()
        await asyncio.sleep(0)
    note("effect", *threads)


@task
async def writes_before_and_after(path):
    """Its call is inside a transaction until a file appears."""
    note("start")

    def write():
        with transaction.atomic():
            enqueue("written", {})
            note("inside")
            while not os.path.exists(path):
                time.sleep(0.01)
            enqueue("written", {})

    await sync_to_async(write)()
    note("effect")


@task(takes_context=True)
async def finishes(context):
    """Its effect and its end in one commit."""

    def write():
        with context.finish(result="with the effect"):
            enqueue("written", {})

    await sync_to_async(write)()


@task
async def there_and_back(depth):
    """From the loop into the thread for calls, from there onto the loop again; how many rows it has seen."""
    seen = 0

    async def go(left):
        nonlocal seen
        seen += await Job.objects.acount()
        if left:
            await sync_to_async(async_to_sync(go))(left - 1)

    await go(depth)
    return seen
