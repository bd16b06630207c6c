"""What a redrive would do, for those who choose its filter: how many dead letters, of which kinds, and the oldest."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobqueue.dead_letters.filtering import Filter, dead_rows
from jobqueue.dead_letters.listing import DeadLetters, groups_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """A dead letter that a redrive would retry."""

    job_id: int
    queue: str
    task: str | None  # None: a job of a handler
    failed_at: datetime | None  # None: plain SQL wrote the failure


@dataclass(frozen=True, slots=True)
class Preview:
    """The dead letters that match a filter. `groups`: the largest first; `first`: the next jobs, in order."""

    matched: int
    groups: list[DeadLetters]
    first: list[Candidate]


def preview(wanted: Filter, *, first: int, using: str) -> Preview:
    """Read what matches `wanted` and the `first` of its jobs. Writes nothing."""
    rows = dead_rows(using, wanted)
    groups = groups_of(rows, using)
    # In the order of ix_lease, as a redrive takes them.
    oldest = rows.order_by("lock_until", "pk").values_list("pk", "queue", "task", "finished_at")
    return Preview(sum(group.count for group in groups), groups, [Candidate(*row) for row in oldest[:first]])
