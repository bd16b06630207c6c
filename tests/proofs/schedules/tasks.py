"""The jobs of these proofs."""

from __future__ import annotations

import time

from jobqueue import task


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
