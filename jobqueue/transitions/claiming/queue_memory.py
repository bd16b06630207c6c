"""What a claimer and a worker remember of queues, so that they read few old index entries and few rules.

ScanCursors: where the last batch ended. SinglePriorityCache: whether only one priority had due jobs. Heads and
WaitingNames: which queues have jobs, and from which priority on. GatedQueues: which queues have limits, and are shut.

While any transaction keeps an old snapshot open, the index entries of claimed jobs cannot be purged, and a claim that
begins at the head of the queue reads all of them, as does a look at an empty queue. So a look that took long is not
repeated at once: until then, only newer jobs are looked for, at the priorities that are known. One that took long may
have waited, for a lock or a server that stood still, and not have read much: of two looks, one after the other, the
shorter one counts. Looking for lower priorities is one of the few statements between the commit of a job and its start.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from django.db.models import FloatField

from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.expressions import Slot
from jobqueue.db.fields import UtcDateTimeField
from jobqueue.db.prepared import Prepared
from jobqueue.db.retry import retry_transient
from jobqueue.gates.limits import NO_LIMITS, Limits, limited_tasks, limits_at
from jobqueue.gates.rules import NO_RULES, fresh_rules, rules_to_start_by
from jobqueue.gates.slots import running
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


def pause_seconds(took: float) -> float:
    """The pause before the next look, in seconds, after one that `took` so long."""
    return 0.0 if took < QUICK_SECONDS else min(PAUSE_SECONDS_MAX, SHARE * took)


class WaitingNames:
    """The names of queues with waiting jobs, for a poller that serves all queues."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._good_until = self._took = 0.0
        self._had_jobs: dict[str, float] = {}

    def find(self, using: str) -> Iterable[str]:
        """Looked up each time; less often under load or where that is slow, and then with the names of recent queues.

        A queue that was idle may be missing for BUSY_SECONDS, or for as long as a slow look is not repeated.
        """
        begun = time.monotonic()
        if begun < self._good_until:
            return self.lately()
        self._names = tuple(candidates.waiting_names(using=using))
        now = time.monotonic()
        before, self._took = self._took, now - begun
        pause = pause_seconds(min(before, self._took))
        self._good_until = now + max(pause, BUSY_SECONDS if self._names else 0.0)
        return self._names

    def lately(self) -> Iterable[str]:
        """The names of the last look, and of queues that had jobs within RECENT_SECONDS."""
        oldest = time.monotonic() - RECENT_SECONDS
        self._had_jobs = {name: seen_at for name, seen_at in self._had_jobs.items() if seen_at >= oldest}
        return {*self._names, *self._had_jobs}

    def had_jobs(self, queues: Iterable[str]) -> None:
        """Remember that jobs wait in these queues now."""
        self._had_jobs |= dict.fromkeys(queues, time.monotonic())

    def forget(self) -> None:
        """Look up the names at the next call."""
        self._good_until = 0.0


@dataclass(slots=True)
class _Whole:
    """The result of the last complete look at a queue, which began at `begun` (monotonic)."""

    level: int | None  # nothing waited above this level; None: nothing waited
    begun: float
    took: float
    good_until: float


class Heads:
    """The heads of the queues of one poller, with a memory."""

    def __init__(self) -> None:
        self._whole: dict[str, _Whole] = {}
        self._levels: dict[str, set[int]] = {}

    def of(self, queues: Sequence[str], *, using: str) -> list[Head]:
        """As candidates.heads(), but where that is slow some may be missing for a while: see PAUSE_SECONDS_MAX."""
        now = time.monotonic()
        known = [queue for queue in queues if queue in self._whole and now < self._whole[queue].good_until]
        rest = [queue for queue in queues if queue not in known]
        found = self._look_since(known, now, using) if known else []
        return found + (self._look_whole(rest, now, using) if rest else [])

    def _look_whole(self, queues: Sequence[str], begun: float, using: str) -> list[Head]:
        found = candidates.heads(queues, using=using)
        if len(self._whole) > _QUEUES_MAX:
            self._whole.clear()
            self._levels.clear()
        now = time.monotonic()
        took, levels = now - begun, {head.queue: head.level for head in found}
        for queue in queues:
            before = self._whole[queue].took if queue in self._whole else 0.0
            self._whole[queue] = _Whole(levels.get(queue), begun, took, now + pause_seconds(min(before, took)))
        for head in found:
            if head.level is not None:
                self._levels.setdefault(head.queue, set()).add(head.level)
        return found

    def _look_since(self, queues: Sequence[str], now: float, using: str) -> list[Head]:
        """The heads of newer jobs, and of those that waited at the last complete look or below."""
        below: list[dict[str, Any]] = [
            {"queue": queue, "level": whole.level} for queue, whole in self._of(queues) if whole.level is not None
        ]
        above: list[dict[str, Any]] = [
            {"queue": queue, "level": level, "age": now - whole.begun + _COMMIT_SECONDS}
            for queue, whole in self._of(queues)
            for level in self._levels.get(queue, ())
            if whole.level is None or level > whole.level
        ]
        waiting = _heads(_from_level(using), below)
        for run in below:
            # Jobs that are gone need not be read again by the next look.
            head = waiting.get(run["queue"])
            self._whole[run["queue"]].level = head.level if head else None
        return list((waiting | _heads(_new_in_level(using), above)).values())

    def _of(self, queues: Iterable[str]) -> list[tuple[str, _Whole]]:
        return [(queue, self._whole[queue]) for queue in queues]


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


class GatedQueues:
    """The queues of one claimer in which jobs with limits were seen."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._seen: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._shut: dict[str, float] = {}
        self._full: set[str] = set()
        #: what operators have set, as it was read for the present claim
        self.known = NO_RULES
        #: what holds for its queue
        self.present = NO_LIMITS

    def limits(self, queue: str) -> Limits:
        """What holds for the whole queue; begins a claim. Raises the database's error if that cannot be read."""
        known = fresh_rules(self._using)
        if known is None:
            known = retry_transient("claim", partial(rules_to_start_by, self._using), using=self._using)
        self.known = known
        self.present = limits_at(queue, self.known)
        return self.present

    def is_shut(self, queue: str, limits: Limits) -> bool:
        """Whether a claim of `queue` would bring nothing: it is paused, full, or its next token is not there yet.

        One statement, and no lock, if it was full when it was last asked.
        """
        if limits.paused or time.monotonic() < self._shut.get(queue, 0.0):
            return True
        most = limits.most
        if most is None or queue not in self._full:
            return False
        if retry_transient("claim", lambda: running(queue, most, self._using), using=self._using) >= most:
            return True
        self._full.discard(queue)
        return False

    def full(self, queue: str) -> None:
        """True if as many jobs of the queue run as its limit allows."""
        self._full.add(queue)

    def look(self, queue: str) -> None:
        """Let the next claim of the queue check its jobs: what it took without that was nothing."""
        self._looked.pop(queue, None)

    def shut(self, queue: str, seconds: float) -> None:
        """The queue has used up its tokens for so long."""
        self._shut[queue] = time.monotonic() + min(seconds, LOOK_SECONDS)

    def excluded(self, queue: str, *, in_one: bool) -> tuple[str, ...] | None:
        """The tasks that a claim of `queue` leaves alone, because they may have limits; None: it has to check its jobs.

        () if no task of this process has a limit and none is paused. `in_one`: a claim by one statement does not see
        what it leaves alone, so now and then the other form looks.
        """
        if self.known.breakers:
            return None
        limited = limited_tasks(queue, self.known)
        if not limited:
            return ()
        now = time.monotonic()
        if now < self._seen.get(queue, 0.0) or (in_one and now >= self._looked.get(queue, 0.0) + LOOK_SECONDS):
            self._looked[queue] = now
            return None
        return limited

    def learn(self, queue: str, tasks: Collection[str | None], *, blocked: bool) -> None:
        """A claim has checked jobs of `queue`, which are of these tasks. `blocked`: some may not start."""
        if blocked or not {*limited_tasks(queue, self.known)}.isdisjoint(tasks):
            self._seen[queue] = time.monotonic() + SEEN_SECONDS
