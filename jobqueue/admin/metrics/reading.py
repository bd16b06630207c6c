"""The figures of the page, read in bounded time and kept for a moment for everybody who looks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from jobqueue.admin.metrics.ranges import Range
from jobqueue.admin.page.keeping import kept
from jobqueue.db.clock import read_now
from jobqueue.db.time_limit import time_limit
from jobqueue.models import JobStatTotal
from jobqueue.stats.counts import Kind
from jobqueue.stats.ends import Ends
from jobqueue.stats.history import Part
from jobqueue.stats.summary import KINDS_MAX, read_summary

#: rows of each table
ROWS_SHOWN = 50
READ_SECONDS = 2.0
#: how long the names are kept that can be chosen
NAMES_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums by a name, those with the most ends first: ROWS_SHOWN of them, and how many there are."""

    rows: list[tuple[str, Ends]]
    number: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What ended in a range. `share` and `is_cut` are those of stats.summary."""

    read_at: datetime
    parts: list[Part]
    total: Ends
    queues: Sums
    tasks: Sums
    share: float
    is_cut: bool


def figures(chosen: Range, queue: str, task: str, using: str) -> Figures | None:
    """The figures of all queues, or of the queue and the task that are not empty; None if reading took too long."""
    # A name may have any characters; the key of a cache may not.
    place = hashlib.sha256(json.dumps([queue, task]).encode()).hexdigest()[:32]
    name = f"metrics-{using}-{chosen.key}-{place}"
    return kept(name, lambda: _read(chosen, queue, task, using), chosen.kept_seconds)


def known_kinds(using: str) -> list[Kind]:
    """The queues and tasks that have ended jobs, by name, KINDS_MAX at most; [] if reading took too long."""
    return kept(f"metrics-{using}-kinds", lambda: _kinds(using), NAMES_SECONDS) or []


def _read(chosen: Range, queue: str, task: str, using: str) -> Figures:
    now = read_now(using)
    found = read_summary(now, chosen.length, chosen.part, using=using, queue=queue or None, task=task or None)
    total = Ends()
    for part in found.parts:
        total.add(part)
    queues = _sums(found.kinds, lambda kind: kind.queue)
    tasks = _sums(found.kinds, lambda kind: kind.task)
    return Figures(now, found.parts, total, queues, tasks, found.share, found.is_cut)


def _sums(kinds: Mapping[Kind, Ends], name_of: Callable[[Kind], str]) -> Sums:
    found: dict[str, Ends] = {}
    for kind, ends in kinds.items():
        found.setdefault(name_of(kind), Ends()).add(ends)
    ordered = sorted(found.items(), key=lambda item: (-item[1].ended, -item[1].retried, item[0]))
    return Sums(ordered[:ROWS_SHOWN], len(ordered))


def _kinds(using: str) -> list[Kind]:
    rows = JobStatTotal.objects.using(using).order_by("queue", "task").values_list("queue", "task")
    with time_limit(READ_SECONDS, using=using):
        return sorted({Kind(*row) for row in rows[:KINDS_MAX]})
