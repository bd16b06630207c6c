"""Ordering keys for operators: those with the most jobs, and those that a failed job blocks. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, Q

from jobqueue.db.clock import read_now
from jobqueue.models import Job, LaneEntry
from jobqueue.models.states import waiting_state

_COLUMNS = ("lane", "job_id", "halted", "job__queue", "job__ordering_key", "job__status", "job__gate", "job__run_at")


@dataclass(frozen=True, slots=True)
class KeyState:
    """An ordering key with jobs that have not ended, and the state of the first of them.

    state: "running"; "ready", "scheduled" or "held" = the first job waits, as models.states has it, and blocks the
    others; "failed" = the first job is FAILED, and the others wait for it; "halted" = a job failed, and the others wait
    for resume(). `jobs` counts all of them.
    """

    queue: str
    ordering_key: bytes
    state: str
    jobs: int
    first_id: int
    due_at: datetime


def hot_keys(*, queue: str | None = None, limit: int = 20, using: str) -> list[KeyState]:
    """The keys with the most jobs, in that order. Reads the entry of every job with a key, without locks."""
    return _states(_of(queue, using), limit, using)


def stuck_keys(*, queue: str | None = None, limit: int = 20, using: str) -> list[KeyState]:
    """The keys that a failed job blocks, those with the most jobs first. Reads as hot_keys()."""
    held = _of(queue, using).filter(Q(halted=True) | Q(job__status=Job.Status.FAILED))
    return _states(LaneEntry.objects.using(using).filter(lane__in=held.order_by().values("lane")), limit, using)


def _of(queue: str | None, using: str) -> Any:
    rows = LaneEntry.objects.using(using)
    return rows if queue is None else rows.filter(job__queue=queue)


def _states(rows: Any, limit: int, using: str) -> list[KeyState]:
    counted = rows.values("lane").annotate(jobs=Count("id"), first=Min("id")).order_by("-jobs", "lane")[:limit]
    found = {row["first"]: row["jobs"] for row in counted}
    now = read_now(using)
    heads = LaneEntry.objects.using(using).filter(pk__in=list(found), job__queue__isnull=False)
    states = [_state(found[pk], row, now) for pk, *row in heads.values_list("id", *_COLUMNS)]
    return sorted(states, key=lambda key: (-key.jobs, key.queue, key.ordering_key))


def _state(jobs: int, row: Sequence[Any], now: datetime) -> KeyState:
    _lane, first_id, halted, queue, key, status, gate, due_at = row
    if status == Job.Status.FAILED:
        state = "failed"
    elif status == Job.Status.PROCESSING:
        state = "running"
    elif halted:
        state = "halted"
    else:
        state = waiting_state(gate, due_at, now)
    return KeyState(queue, key or b"", state, jobs, first_id, due_at)
