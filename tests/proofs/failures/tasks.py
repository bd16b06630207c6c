"""The jobs of these proofs."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import requests
import urllib3

from jobqueue import current_job, handler, task
from jobqueue.exceptions import BatchErrors, Discard, Retry, Snooze
from tests.app.batches import note as note_batch
from tests.app.tasks import note
from tests.failures.real import World
from tests.failures.real.catalogue import REAL

#: none of them is due again while a test goes on
ENDS = {
    "Retry": lambda: Retry("30m"),
    "Snooze": lambda: Snooze("1h"),
    "Discard": lambda: Discard("the order was deleted"),
}
BATCH = "failures-batch"


@task(max_attempts=1)
def raises(how, world):
    """One of the real exceptions."""
    REAL[how].call(World(**world, job_id=current_job().job_id))


@task(max_attempts=1, timeout_seconds=0.2)
def takes_too_long():
    """Runs into its own limit."""
    while True:
        time.sleep(0.01)


@task(max_attempts=1)
def takes_one_argument(order):
    """Fails if the message has another one."""


@task(max_attempts=1)
def returns_no_json():
    """Its result cannot be stored."""
    return object()


@handler("failures-orders")
def reads_a_key(payload):
    """Fails if the message has another format."""
    return payload["order"]


def end(how):
    """What the job asks for; "crash" kills the process of the first attempt."""
    note("start")
    if how in ENDS:
        raise ENDS[how]()
    if current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@task(max_attempts=3)
def ends(how):
    end(how)


@task(max_attempts=3, on_crash="fail")
def ends_or_fails(how):
    end(how)


@task(max_attempts=3, on_crash="hold")
def ends_or_is_held(how):
    end(how)


@task(max_attempts=3)
async def ends_as_a_coroutine(how):
    await asyncio.sleep(0)
    end(how)


@task(max_attempts=3, on_crash="fail")
async def ends_or_fails_as_a_coroutine(how):
    await asyncio.sleep(0)
    end(how)


@task(max_attempts=3, on_crash="hold")
async def ends_or_is_held_as_a_coroutine(how):
    await asyncio.sleep(0)
    end(how)


@handler(BATCH, batch=10)
def ends_in_a_batch(leases):
    """Each row says how it ends."""
    note_batch("start", leases)
    if any(lease.payload["how"] == "crash" and lease.attempt == 1 for lease in leases):
        os.kill(os.getpid(), signal.SIGKILL)
    raise BatchErrors({i.job_id: ENDS[i.payload["how"]]() for i in leases if i.payload["how"] in ENDS})


@task(max_attempts=1)
def needs(path):
    """Needs a service that is up when a file is there."""
    note("start")
    if not os.path.exists(path):
        raise ConnectionRefusedError("the service is down")


@task(dependency="shop", backoff=1)
def buys(url):
    """A job whose retries have a budget."""
    note("run")
    requests.get(url, timeout=30).raise_for_status()


@task(backoff=1)
def buys_without_a_budget(url):
    """The same for a service that has no name."""
    note("run")
    requests.get(url, timeout=30).raise_for_status()


@task(max_attempts=3, backoff=0)
def tries_three_times(url):
    """Retries of a library inside the attempts of a job."""
    note("run")
    retries = urllib3.Retry(total=2, backoff_factor=0, status_forcelist=[503])
    with urllib3.PoolManager() as pool:
        pool.request("GET", url, retries=retries, timeout=5)
