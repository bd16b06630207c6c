"""Groups of ended jobs as the index of the claim has them: of one queue, state, gate and priority, by run_at."""

from __future__ import annotations

from typing import NamedTuple

from jobqueue.db import vendor
from jobqueue.db.expressions import Unestimated
from jobqueue.models import Job
from jobqueue.models.job import JobQuerySet

INDEX = "ix_pick"


class Group(NamedTuple):
    """Ended jobs that stand one after another in the index, oldest first."""

    queue: str
    status: int
    gate: int
    priority: int

    def rows(self, using: str) -> JobQuerySet:
        """Its jobs, in the order of the index."""
        rows = _ended(self.queue, self.status, using).filter(gate=self.gate, priority=self.priority)
        return rows.order_by("run_at", "id")


def next_group(queue: str, status: int, after: Group | None, using: str) -> Group | None:
    """The next group of a queue and state that has jobs: two index seeks."""
    ended = _ended(queue, status, using)
    if after is None:
        found = _first(ended.order_by("gate", "priority", "run_at", "id"))
    else:
        # Two statements: for one with OR, PostgreSQL would read all entries of this group.
        above = ended.filter(gate=after.gate, priority__gt=after.priority).order_by("priority", "run_at", "id")
        later = ended.filter(gate__gt=after.gate).order_by("gate", "priority", "run_at", "id")
        found = _first(above) or _first(later)
    return None if found is None else Group(queue, status, *found)


def _ended(queue: str, status: int, using: str) -> JobQuerySet:
    rows = Job.objects.using(using).filter(queue=Unestimated(queue), status=Unestimated(status))
    return vendor(using).walk_by(rows, INDEX)


def _first(rows: JobQuerySet) -> tuple[int, int] | None:
    return rows.values_list("gate", "priority").first()
