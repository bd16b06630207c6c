"""What a process remembers of the queues that it claims from, so that it reads few old index entries and few rules.

A QueueMemory has what the last claims and looks have shown of one queue; Queues has those of all queues, and which of
them have jobs. All of it may be forgotten at any moment: the next claim then reads more, and takes the same jobs.

While any transaction keeps an old snapshot open, the index entries of claimed jobs cannot be purged, and a claim that
begins at the head of the queue reads all of them, as does a look at an empty queue. So a look that took long is not
repeated at once: until then, only newer jobs are looked for, at the priorities that are known. One that took long may
have waited, for a lock or a server that stood still, and not have read much: of two looks, one after the other, the
shorter one counts. Looking for lower priorities is one of the few statements between the commit of a job and its start.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from django.db.models import FloatField

from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.expressions import Slot
from jobqueue.db.fields import UtcDateTimeField
from jobqueue.db.prepared import Prepared
from jobqueue.models import Job
from jobqueue.transitions.claiming import candidates
from jobqueue.transitions.claiming.candidates import LEVEL, Head

# Jobs may appear before the cursor: retries, late commits, other hosts' clocks. They wait this long at most.
CURSOR_SECONDS = 1.0
# Levels above that held only delayed jobs are looked at this often, since each look is two statements per level. A job
# of a higher priority waits as long at most.
WALK_SECONDS = 0.1
# While jobs of the only priority keep coming, those of a lower one may wait this long, although there is room.
SINGLE_PRIORITY_SECONDS = 1.0
_SINCE, _AFTER = Slot("since", UtcDateTimeField()), Slot("after", Job._meta.get_field("id"))
#: Complete looks take at most a tenth of a poller's time, and are at most this far apart. Jobs with an old run_at, that
#: were committed late, or of a priority never seen here, wait this long at most.
SHARE, PAUSE_SECONDS_MAX = 10, 10.0
#: A look that took less is repeated with every poll.
QUICK_SECONDS = 0.01
#: '*': under load the names of queues are looked up this often, and an idle queue is found this late.
BUSY_SECONDS = 0.2
#: '*': a queue that had jobs within this time is looked at without looking up its name.
RECENT_SECONDS = 60.0
# A job that is committed this long after its run_at is still found by a look for newer jobs.
_COMMIT_SECONDS = 1.0
_QUEUES_MAX = 10_000
_AGE = Slot("age", FloatField())
#: a claim by one statement passes over tasks with limits; this often the other form looks whether there are any
LOOK_SECONDS = 1.0
#: so long after the last job with a limit, claims of a queue check limits
SEEN_SECONDS = 60.0


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
        """The parameters of that statement."""
        return {"since": self.run_at, "after": self.job_id}


NO_CURSOR = ScanCursor(None, datetime.min.replace(tzinfo=UTC))


class Beginning(NamedTuple):
    """Where one pass of a claim begins to look in its queue."""

    head: Head | None = None  # the highest priority that waits, if it is known
    cursor: ScanCursor = NO_CURSOR  # jobs in front of it were claimed a moment ago
    only_level: int | None = None  # the only priority that had due jobs a moment ago: below it nothing is looked for
    follows: bool = False  # at the cursor's level: those above held only delayed jobs a moment ago

    def levels(self, queue: str, using: str) -> Iterator[int]:
        """The priorities to claim from, highest first."""
        head = Head(queue, self.cursor.level, all_due=True) if self.follows else self.head
        return candidates.due_levels(queue, using=using, surely=self.cursor.level, head=head)


FROM_HEAD = Beginning()


@dataclass(slots=True)
class QueueMemory:
    """One queue, as the claims and looks of this process have found it. Instants are of the monotonic clock."""

    # Of claims:
    cursor: ScanCursor = NO_CURSOR  # where the last batch ended
    only_level: int | None = None  # all due jobs had this priority; believed until only_until
    only_until: float = 0.0
    limited_until: float = 0.0  # a job with a limit was seen: claims check limits until then
    checked_at: float = 0.0  # when a claim last checked limits
    shut_until: float = 0.0  # the queue has used up its tokens until then
    full: bool = False  # as many jobs of the queue ran as its limit allows
    has_gate: bool = False  # the gate of the queue's own limits was there
    # Of the last complete look for its head, which took `took` from looked_at on:
    level: int | None = None  # nothing waited above this priority; None: nothing waited
    looked_at: float = 0.0
    took: float = 0.0
    complete_until: float = 0.0  # until then only newer jobs are looked for
    levels: set[int] = field(default_factory=set)  # priorities that were seen

    def beginning(self, head: Head | None, *, with_cursor: bool) -> Beginning:
        """Where a claim that checks no limits begins."""
        now = time.monotonic()
        cursor = self.cursor if with_cursor and now < self.cursor.good_until else NO_CURSOR
        level = self.only_level if now < self.only_until else None
        only = level if head is not None and head.level == level else None
        return Beginning(head, cursor, only, cursor.follows(head))

    def saw(self, levels: Collection[int]) -> None:
        """A claim looked at all levels and took all it could; they were of these `levels`."""
        self.only_level, self.only_until = None, time.monotonic() + SINGLE_PRIORITY_SECONDS
        if len(levels) == 1:
            (self.only_level,) = levels

    def checks_limits(self, *, in_one: bool) -> bool:
        """Whether the next claim has to check its jobs, although tasks with limits may be left alone.

        `in_one`: a claim by one statement does not see what it leaves alone, so now and then the other form looks.
        """
        now = time.monotonic()
        if now < self.limited_until or (in_one and now >= self.checked_at + LOOK_SECONDS):
            self.checked_at = now
            return True
        return False

    def met_limit(self) -> None:
        """A claim has met a job that may have a limit."""
        self.limited_until = time.monotonic() + SEEN_SECONDS

    def shut(self, seconds: float) -> None:
        """The queue has used up its tokens for so long."""
        self.shut_until = time.monotonic() + min(seconds, LOOK_SECONDS)


class Queues(dict[str, QueueMemory]):
    """The memory of one process: by name, the queues that it has met."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._names_until = self._names_took = 0.0
        self._had_jobs: dict[str, float] = {}

    def __missing__(self, queue: str) -> QueueMemory:
        found = self[queue] = QueueMemory()
        return found

    def names(self, using: str) -> Iterable[str]:
        """The names of queues with waiting jobs, for a poller that serves all queues.

        Looked up each time; less often under load or where that is slow, and then with the names of recent queues. A
        queue that was idle may be missing for BUSY_SECONDS, or for as long as a slow look is not repeated.
        """
        begun = time.monotonic()
        if begun < self._names_until:
            return self.lately()
        self._names = tuple(candidates.waiting_names(using=using))
        now = time.monotonic()
        before, self._names_took = self._names_took, now - begun
        pause = pause_seconds(min(before, self._names_took))
        self._names_until = now + max(pause, BUSY_SECONDS if self._names else 0.0)
        return self._names

    def lately(self) -> Iterable[str]:
        """The names of the last look, and of queues that had jobs within RECENT_SECONDS."""
        oldest = time.monotonic() - RECENT_SECONDS
        self._had_jobs = {name: seen_at for name, seen_at in self._had_jobs.items() if seen_at >= oldest}
        return {*self._names, *self._had_jobs}

    def had_jobs(self, queues: Iterable[str]) -> None:
        """Remember that jobs wait in these queues now."""
        self._had_jobs |= dict.fromkeys(queues, time.monotonic())

    def forget_names(self) -> None:
        """Look up the names at the next call."""
        self._names_until = 0.0

    def heads(self, queues: Sequence[str], *, using: str) -> list[Head]:
        """As candidates.heads(), but where that is slow some may be missing for a while: see PAUSE_SECONDS_MAX."""
        if len(self) > max(_QUEUES_MAX, len(queues)):
            for name in self.keys() - {*queues}:
                del self[name]
        now = time.monotonic()
        known = {queue: self[queue] for queue in queues if queue in self and now < self[queue].complete_until}
        rest = [queue for queue in queues if queue not in known]
        found = _look_since(known, now, using) if known else []
        return found + (self._look_whole(rest, now, using) if rest else [])

    def _look_whole(self, queues: Sequence[str], begun: float, using: str) -> list[Head]:
        found = candidates.heads(queues, using=using)
        now = time.monotonic()
        took, levels = now - begun, {head.queue: head.level for head in found}
        for queue in queues:
            one = self[queue]
            before, one.took = one.took, took
            one.level, one.looked_at = levels.get(queue), begun
            one.complete_until = now + pause_seconds(min(before, took))
            if one.level is not None:
                one.levels.add(one.level)
        return found


def pause_seconds(took: float) -> float:
    """The pause before the next look, in seconds, after one that `took` so long."""
    return 0.0 if took < QUICK_SECONDS else min(PAUSE_SECONDS_MAX, SHARE * took)


def _look_since(queues: dict[str, QueueMemory], now: float, using: str) -> list[Head]:
    """The heads of newer jobs, and of those that waited at the last complete look or below."""
    below: list[dict[str, Any]] = [
        {"queue": queue, "level": one.level} for queue, one in queues.items() if one.level is not None
    ]
    above: list[dict[str, Any]] = [
        {"queue": queue, "level": level, "age": now - one.looked_at + _COMMIT_SECONDS}
        for queue, one in queues.items()
        for level in one.levels
        if one.level is None or level > one.level
    ]
    waiting = _heads(_from_level(using), below)
    for run in below:
        # Jobs that are gone need not be read again by the next look.
        head = waiting.get(run["queue"])
        queues[run["queue"]].level = head.level if head else None
    return list((waiting | _heads(_new_in_level(using), above)).values())


def _heads(look: Prepared, runs: Sequence[dict[str, Any]]) -> dict[str, Head]:
    """Map each queue to its head with the highest priority."""
    found: dict[str, Head] = {}
    for head in map(Head._make, look.rows_of_each(runs)):
        best = found.get(head.queue)
        if best is None or (best.level or 0) < (head.level or 0):
            found[head.queue] = head
    return found


@cache
def _from_level(using: str) -> Prepared:
    return candidates.highest(candidates.waiting(using).filter(priority__lte=LEVEL), using)


@cache
def _new_in_level(using: str) -> Prepared:
    rows = candidates.waiting(using).filter(priority=LEVEL, run_at__gte=UtcNowPlus(-_AGE))
    return candidates.highest(rows, using)
