"""Jobs that do nothing, and one that records its start."""

from __future__ import annotations

from benchmarks.effects import effect
from jobqueue import task

RESULT = {"text": "x" * 188}  # 200 bytes as JSON


@task(queue_name="bench")
def noop() -> None:
    """Do nothing."""


@task(queue_name="bench")
def answer() -> dict[str, str]:
    """Do nothing, and return a result of 200 bytes."""
    return RESULT


@task(queue_name="bench")
def stamp(number: int) -> None:
    """Record the start."""
    effect(number)
