"""How far a claimer has come in each queue, so that it need not look there again and again.

While any transaction keeps an old snapshot open, the index entries of claimed jobs cannot be purged, and every claim
that begins at the head of the queue walks over all of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobqueue.db.expressions import Slot
from jobqueue.db.fields import UtcDateTimeField
from jobqueue.models import Job
from jobqueue.transitions.claiming.candidates import Head

# Jobs may appear below the cursor: retries, late commits, other hosts' clocks. They wait this long at most.
CURSOR_SECONDS = 1.0
# Levels above that held only delayed jobs are looked at this often: a higher priority waits as long at most, and each
# look would be two statements a level, for every batch.
WALK_SECONDS = 0.1
_SINCE, _AFTER = Slot("since", UtcDateTimeField()), Slot("after", Job._meta.get_field("id"))


@dataclass(frozen=True, slots=True)
class ScanCursor:
    """On `level`, jobs due before `run_at` were claimed a moment ago, and of those due then all up to `job_id`.

    With a job_id the next batch is looked for among the jobs due at the same instant: many were added by one statement.
    From level `top`, the highest, down to this one nothing was due at `walked_at`.
    """

    level: int | None
    run_at: datetime
    job_id: int | None = None
    good_until: float = 0.0
    top: int | None = None
    walked_at: float = 0.0

    def follows(self, head: Head | None) -> bool:
        """Whether a moment ago nothing was due from `head` down to this level: all of it is delayed or gated."""
        same = head is not None and head.level is not None and head.level == self.top and not head.all_due
        return same and time.monotonic() < self.walked_at + WALK_SECONDS

    def moved(self, level: int, run_at: datetime, job_id: int | None, head: Head | None, *, walked: bool) -> ScanCursor:
        """The cursor after a full batch that began at this one and ended at `run_at` of `level`.

        `job_id` is the last one of a batch that had one run_at. From `head` down to `level` it has `walked`, or left
        that out. A cursor that only moves up is as old as its first look, and so is a walk that was left out: the claim
        may have taken longer than they are good for.
        """
        now, same = time.monotonic(), self.level == level
        good_until = self.good_until if same else now + CURSOR_SECONDS
        walked_at = now if walked or not same else self.walked_at
        return ScanCursor(level, run_at, job_id, good_until, head.level if head else None, walked_at)

    def condition(self) -> dict[str, Slot]:
        """What a prepared statement filters by to begin here."""
        return {"run_at__gte": _SINCE} if self.job_id is None else {"run_at": _SINCE, "id__gt": _AFTER}

    def values(self) -> dict[str, Any]:
        """What that statement is run with."""
        return {"since": self.run_at, "after": self.job_id}


NO_CURSOR = ScanCursor(None, datetime.min.replace(tzinfo=UTC))


class ScanCursors:
    """The memory of one claimer. A claim that comes back short is made again without its cursor."""

    def __init__(self) -> None:
        self._known: dict[str, ScanCursor] = {}

    def of(self, queue: str) -> ScanCursor:
        """The cursor of `queue`; none when it is old."""
        cursor = self._known.get(queue, NO_CURSOR)
        return cursor if time.monotonic() < cursor.good_until else NO_CURSOR

    def keep(self, queue: str, cursor: ScanCursor) -> None:
        """Begin there from now on."""
        self._known[queue] = cursor
