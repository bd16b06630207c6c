"""The jobs of these proofs."""

from __future__ import annotations

import time
from pathlib import Path

from jobqueue import task
from tests.app.tasks import note

#: processes are killed all the time
TRIES = {"max_attempts": 1000}


@task
def brief(seconds):
    """As short as a job can be for 0, else as long as a short call of another service."""
    if seconds:
        time.sleep(seconds)


@task
def succeeded():
    """on_success of a group."""


@task
def failed():
    """on_failure of a group."""


@task
def done():
    """on_done of a group."""


@task(**TRIES)
def node(seconds):
    """A node of a workflow."""
    note("effect")
    time.sleep(seconds)


@task(no_retry_on=FileNotFoundError, **TRIES)
def broken_node(path):
    """A node that fails for good until there is this file."""
    note("effect")
    Path(path).read_text()


@task(**TRIES)
def ended_well():
    """A callback."""


@task(**TRIES)
def ended_badly():
    """A callback."""


@task(**TRIES)
def ended():
    """A callback."""
