"""What a claimer remembers of each queue: where its last batch ended, and whether only one priority had due jobs.

While any transaction keeps an old snapshot open, the index entries of claimed jobs cannot be purged, and a claim that
begins at the head of the queue reads all of them. Looking for lower priorities is one of the few statements between the
commit of a job and its start.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from jobqueue.db.expressions import Slot
from jobqueue.db.fields import UtcDateTimeField
from jobqueue.models import Job
from jobqueue.transitions.claiming.candidates import Head

# Jobs may appear before the cursor: retries, late commits, other hosts' clocks. They wait this long at most.
CURSOR_SECONDS = 1.0
# Levels above that held only delayed jobs are looked at this often, since each look is two statements per level. A job
# of a higher priority waits as long at most.
WALK_SECONDS = 0.1
# While jobs of the only priority keep coming, those of a lower one may wait this long, although there is room.
SINGLE_PRIORITY_SECONDS = 1.0
_SINCE, _AFTER = Slot("since", UtcDateTimeField()), Slot("after", Job._meta.get_field("id"))


@dataclass(frozen=True, slots=True)
class ScanCursor:
    """On `level`, jobs due before `run_at` were claimed a moment ago, and of those due then all up to `job_id`.

    With a job_id, the next batch is sought among the jobs due at the same instant, which one statement has added. From
    level `top`, the highest, down to this one nothing was due at `walked_at`.
    """

    level: int | None
    run_at: datetime
    job_id: int | None = None
    good_until: float = 0.0
    top: int | None = None
    walked_at: float = 0.0

    def follows(self, head: Head | None) -> bool:
        """Whether a moment ago nothing was due from `head` down to this level, because all is delayed or gated."""
        same = head is not None and head.level is not None and head.level == self.top and not head.all_due
        return same and time.monotonic() < self.walked_at + WALK_SECONDS

    def moved(self, level: int, run_at: datetime, job_id: int | None, head: Head | None, *, walked: bool) -> ScanCursor:
        """The cursor after a full batch that began at this one and ended at `run_at` of `level`.

        `job_id` is the last one of a batch that had one run_at. `walked`: the claim looked at the levels from `head`
        down to `level`. A cursor that only moves up keeps the age of its first look, and a walk that was left out the
        age of the last one: the claim may have taken longer than they are valid.
        """
        now, same = time.monotonic(), self.level == level
        good_until = self.good_until if same else now + CURSOR_SECONDS
        walked_at = now if walked or not same else self.walked_at
        return ScanCursor(level, run_at, job_id, good_until, head.level if head else None, walked_at)

    def starts(self, level: int | None) -> list[ScanCursor]:
        """The cursors to claim `level` from: this one first, if it is on that level."""
        return [self, NO_CURSOR] if level is not None and level == self.level else [NO_CURSOR]

    def condition(self) -> dict[str, Slot]:
        """What a prepared statement filters by to begin here."""
        if self is NO_CURSOR:
            return {}
        return {"run_at__gte": _SINCE} if self.job_id is None else {"run_at": _SINCE, "id__gt": _AFTER}

    def values(self) -> dict[str, object]:
        """What that statement is run with."""
        return {"since": self.run_at, "after": self.job_id}


NO_CURSOR = ScanCursor(None, datetime.min.replace(tzinfo=UTC))


class ScanCursors:
    """The cursors of one claimer. A claim that returns too few is repeated without its cursor."""

    def __init__(self) -> None:
        self._known: dict[str, ScanCursor] = {}

    def of(self, queue: str) -> ScanCursor:
        """The cursor of `queue`; NO_CURSOR when it is old."""
        cursor = self._known.get(queue, NO_CURSOR)
        return cursor if time.monotonic() < cursor.good_until else NO_CURSOR

    def keep(self, queue: str, cursor: ScanCursor) -> None:
        """Begin the next claim of `queue` there."""
        self._known[queue] = cursor


class SinglePriorityCache:
    """Queues in which all due jobs had one priority a moment ago."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def holds(self, queue: str, level: int | None) -> bool:
        """Whether a moment ago nothing was due in `queue` but jobs of `level`."""
        known, good_until = self._known.get(queue, (None, 0.0))
        return known is not None and known == level and time.monotonic() < good_until

    def keep(self, queue: str, levels: Collection[int]) -> None:
        """A claim looked at all levels of `queue` and took all it could; they were of these `levels`."""
        if len(levels) == 1:
            (level,) = levels
            self._known[queue] = level, time.monotonic() + SINGLE_PRIORITY_SECONDS
        else:
            self._known.pop(queue, None)
