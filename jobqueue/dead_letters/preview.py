"""What a redrive would do, for those who choose its filter: how many dead letters, of which kinds, and the oldest."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobqueue.db.time_limit import time_limit
from jobqueue.dead_letters.filtering import Filter, dead_rows
from jobqueue.dead_letters.listing import DeadLetters, groups_of, newest_rows
from jobqueue.exceptions import StatementTimeout

#: of the count, for a page that somebody waits for
COUNT_SECONDS = 1.0


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

    matched: int | None  # None: counting took too long
    groups: list[DeadLetters]
    are_older: bool  # whether the groups leave out older ones
    first: list[Candidate]


def preview(wanted: Filter, *, first: int, grouped: int, using: str) -> Preview:
    """Read what matches `wanted`, its groups among the `grouped` newest dead letters, and the `first` of its jobs.

    Writes nothing.
    """
    rows = dead_rows(using, wanted)
    # Ids are few.
    newest, are_older = (rows, False) if "job_ids" in wanted else newest_rows(using, wanted, grouped)
    groups = groups_of(newest, using)
    # In the order of ix_lease, as a redrive takes them.
    oldest = rows.order_by("lock_until", "pk").values_list("pk", "queue", "task", "finished_at")
    return Preview(_counted(wanted, using), groups, are_older, [Candidate(*row) for row in oldest[:first]])


def _counted(wanted: Filter, using: str) -> int | None:
    try:
        with time_limit(COUNT_SECONDS, using=using):
            return dead_rows(using, wanted).count()
    except StatementTimeout:
        return None
