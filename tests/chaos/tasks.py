"""The jobs of a trial: each notes its start outside of the database, and most commit an effect with their end."""

import asyncio
import random
import time
from contextlib import suppress

from jobqueue import current_job, handler, schedule, task
from jobqueue.exceptions import LockNotAcquired, LockNotHeld
from jobqueue.idempotency import once
from jobqueue.locks import lease_lock, mutex
from jobqueue.outbox import subscriber
from tests.chaos.models import Count, Effect
from tests.chaos.notes import LOCK_SECONDS, MEANT, note

#: so many that no job runs out of attempts by the faults alone
MANY = 200


def begin(job, **facts):
    """Note a start."""
    facts = {"locked_at": job.lease.locked_at.timestamp()} | facts
    note("start", job=job.job_id, queue=job.queue, fence=job.fence, attempt=job.attempt, **facts)


def act(job, kind, number, seconds, fails=0.0, key="", position=None):
    """Run for a while, then fail with a probability, or commit an effect with the end of the job."""
    begin(job, number=number)
    time.sleep(seconds)
    if random.random() < fails:
        raise RuntimeError("as often as it was asked to")
    with job.finish(result=number):
        Effect.objects.create(kind=kind, number=number, job=job.job_id, key=key, position=position, at=time.time())
        if random.random() < 0.1:
            time.sleep(random.uniform(0, 0.05))
    note("end", job=job.job_id, fence=job.fence)


@task(max_attempts=MANY, takes_context=True)
def effect(context, kind, number, seconds, fails=0.0, key="", position=None):
    act(context, kind, number, seconds, fails, key, position)


@task(
    queue_name="slots",
    max_attempts=MANY,
    takes_context=True,
    concurrency_key=lambda number, seconds, key: key,
    concurrency_limit=2,
)
def slot(context, number, seconds, key):
    act(context, "slot", number, seconds)


@task(queue_name="solo", max_attempts=MANY, takes_context=True, concurrency_limit=2)
def solo(context, number, seconds):
    act(context, "solo", number, seconds)


@task(queue_name="rated", max_attempts=MANY, takes_context=True, rate_limit="20/s")
def rated(context, number):
    act(context, "rated", number, 0.001)


@task(queue_name="unique", max_attempts=MANY, takes_context=True, unique="waiting")
def unique(context, key):
    act(context, "unique", 0, random.uniform(0, 0.05), 0.02, key)


@task(queue_name="counted", max_attempts=MANY, takes_context=True)
def counted(context, number):
    """Reads and writes a number under a mutex: two holders at a time would lose one."""
    begin(context, number=number)
    with context.finish():
        mutex("counter")
        value = Count.objects.get(name="counter").value
        time.sleep(0.002)
        Count.objects.filter(name="counter").update(value=value + 1)
        Effect.objects.create(kind="counted", number=number, job=context.job_id, at=time.time())


@task(queue_name="locked", max_attempts=MANY, takes_context=True)
def locked(context, number, name, seconds):
    """Holds a lease lock for a while."""
    begin(context, number=number)
    lock = lease_lock(name, LOCK_SECONDS, timeout_seconds=1)
    asked = time.time()
    with suppress(LockNotAcquired, LockNotHeld), lock:
        note("got", name=name, lock_fence=lock.fence, asked=asked)
        time.sleep(seconds)
        note("left", name=name, lock_fence=lock.fence)


@task(queue_name="coroutines", max_attempts=MANY)
async def coroutine(number):
    begin(current_job(), number=number)
    await asyncio.sleep(random.uniform(0, 0.2))


@task(queue_name="groups", max_attempts=MANY, takes_context=True)
def member(context, number, seconds, fails):
    act(context, "member", number, seconds, fails)


@task(queue_name="groups", max_attempts=1, takes_context=True, on_crash="fail")
def bad_member(context, number):
    begin(context, number=number)
    raise ValueError(MEANT)


def called_back(kind):
    """The effect of a callback of a group."""
    job = current_job()
    begin(job)
    with job.finish():
        Effect.objects.create(kind=kind, number=job.group.id, job=job.job_id, at=time.time())


@task(queue_name="groups", max_attempts=MANY)
def on_success():
    called_back("on_success")


@task(queue_name="groups", max_attempts=MANY)
def on_failure():
    called_back("on_failure")


@task(queue_name="groups", max_attempts=MANY)
def on_done():
    called_back("on_done")


@task(queue_name="doomed", max_attempts=1, takes_context=True)
def doomed(context, number):
    """FAILED until the end of the faults; redrives bring it back."""
    if not Count.objects.get(name="mercy").value:
        begin(context, number=number)
        raise ValueError(MEANT)
    act(context, "doomed", number, 0.01)


@schedule(every="2s", name="ticks")
@task(queue_name="ticks", max_attempts=MANY, takes_context=True)
def tick(context):
    act(context, "tick", 0, 0.01, 0.1, context.tick.isoformat())


@task(queue_name="probe", max_attempts=MANY, takes_context=True)
def probe(context):
    """Its first run lasts until it is killed."""
    begin(context)
    time.sleep(3600 if context.attempt == 1 else 0)


@handler("rows", batch=20)
def rows(leases):
    for lease in leases:
        with once(f"row-{lease.job_id}") as o:
            if not o.done:
                number = lease.payload["number"]
                Effect.objects.create(kind="row", number=number, job=lease.job_id, at=time.time())
                o.result = 1


@subscriber("chaos.*")
def heard(event):
    note("try", number=event.payload["number"])
    if random.random() < 0.02:
        raise RuntimeError("the other side refuses")
    note("delivered", number=event.payload["number"])
