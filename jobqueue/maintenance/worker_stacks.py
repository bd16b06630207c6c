"""Stacks of workers on request: a request is written to the worker's row, and its monitor writes the answer there.

Nothing is written without a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.models import Worker
from jobqueue.payload import JSON


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a worker, and its age in seconds."""

    worker: str
    age_seconds: float
    content: JSON


def ask(names: Sequence[str], *, using: str) -> None:
    """Ask these workers for the stacks of their threads. One UPDATE; answers come within seconds."""
    rows = Worker.objects.using(using).filter(name__in=names, stopped_at__isnull=True)
    rows.update(stacks_asked_at=UtcNow())


def asked(names: Sequence[str], *, using: str) -> list[str]:
    """Those of these workers that were asked and have not answered. One statement."""
    rows = Worker.objects.using(using).filter(name__in=names, stacks_asked_at__isnull=False)
    return list(rows.values_list("name", flat=True))


def answer(name: str, content: JSON, *, using: str) -> None:
    """Write the answer of a worker."""
    rows = Worker.objects.using(using).filter(name=name)
    change = {"stacks": content, "stacks_at": UtcNow(), "stacks_asked_at": None}
    retry_transient("housekeeping", lambda: rows.update(**change), using=using)


def answers(names: Sequence[str], seconds: float, *, using: str) -> list[Answer]:
    """The answers of these workers in the last `seconds`. One statement."""
    rows = Worker.objects.using(using).filter(name__in=names, stacks_at__gte=UtcNowPlus(-seconds)).order_by("name")
    found = rows.values_list("name", "stacks", Selected("stacks_at"), Selected(UtcNow()))
    return [Answer(name, max(0.0, (now - at).total_seconds()), content) for name, content, at, now in found]
