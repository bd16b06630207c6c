"""The jobs of these proofs."""

from __future__ import annotations

import time

import requests

from jobqueue import current_job, task
from tests.app.tasks import note
from tests.observer import attend

LIMIT, PER_SECOND = 3, 20
TRIES = {"max_attempts": 1000}


def _run(address, name, seconds):
    with attend(address, name):
        time.sleep(seconds)


@task(concurrency_limit=LIMIT, **TRIES)
def limited(address, name, seconds):
    _run(address, name, seconds)


@task(concurrency_limit=1, **TRIES)
def single(address, name, seconds):
    _run(address, name, seconds)


@task(concurrency_key=lambda address, name, seconds: name, concurrency_limit=1, **TRIES)
def keyed(address, name, seconds):
    _run(address, name, seconds)


@task(rate_limit=f"{PER_SECOND}/s", **TRIES)
def paced(address, name, seconds):
    _run(address, name, seconds)


@task(**TRIES)
def free(address, name, seconds):
    _run(address, name, seconds)


@task(concurrency_limit=1, **TRIES)
def stops_when_asked(address, name, seconds):
    """Runs for so long, and ends early if it is to stop."""
    until = time.monotonic() + seconds
    with attend(address, name):
        while time.monotonic() < until and not current_job().should_stop:
            time.sleep(0.01)


@task(concurrency_key=lambda number: f"key-{number}", concurrency_limit=1)
def keyed_work(number):
    """As short as a job can be."""


@task
def free_work(number):
    """As short as a job can be."""


@task(dependency="shop", max_attempts=1000)
def buys(url):
    """Calls a service over HTTP."""
    note("run")
    requests.get(url, timeout=30).raise_for_status()
