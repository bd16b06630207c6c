"""Priority aging: jobs that have waited longer than the queue's STARVE_SECONDS. Builds queries and takes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

from django.db.models import Min

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.expressions import Unestimated
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet
from jobqueue.transitions.claiming import candidates

LOOK_SECONDS = 1.0
_next_look: dict[tuple[str, str], float] = {}


def look_is_due(queue: str, *, using: str) -> bool:
    """Whether the queue has STARVE_SECONDS and this process last looked more than a second ago."""
    return _seconds(queue) is not None and time.monotonic() >= _next_look.get((using, queue), 0.0)


def aged_levels(queue: str, *, using: str) -> Iterator[tuple[int, JobQuerySet]]:
    """(priority, its jobs that have been due for longer than STARVE_SECONDS, oldest first), lowest priority first.

    Yields nothing without that setting, or if this process looked less than a second ago. Two non-locking index seeks
    per priority level.
    """
    seconds = _seconds(queue)
    if seconds is None or not look_is_due(queue, using=using):
        return
    _next_look[using, queue] = time.monotonic() + LOOK_SECONDS
    waiting = Job.objects.using(using).filter(queue=Unestimated(queue), status=candidates.READY, gate=0)
    waiting = vendor(using).force_index(waiting, candidates.INDEX)
    level = waiting.aggregate(low=Min("priority"))["low"]
    while level is not None:
        rows = candidates.due(Unestimated(queue), level, using=using).filter(run_at__lte=UtcNowPlus(-seconds))
        if rows.values("pk")[:1]:
            yield level, rows
        level = waiting.filter(priority__gt=level).aggregate(low=Min("priority"))["low"]


def _seconds(queue: str) -> float | None:
    own = load().queues.get(queue)
    return own.starve_seconds if own else None
