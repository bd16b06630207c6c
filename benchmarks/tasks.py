"""Jobs that do nothing, and one that says when it started."""

from __future__ import annotations

from benchmarks.effects import effect
from jobqueue import task

RESULT = {"text": "x" * 188}  # 200 bytes as JSON


@task(queue_name="bench")
def noop() -> None:
    """Nothing."""


@task(queue_name="bench")
def answer() -> dict[str, str]:
    """Nothing, with a result of 200 bytes."""
    return RESULT


@task(queue_name="bench")
def stamp(number: int) -> None:
    """Writes down that it started, and when."""
    effect(number)
