"""How a worker looks for queues and their heads again and again without walking over the same history each time.

While any transaction keeps an old snapshot open, the index entries of the jobs that were claimed since cannot be
purged, and whoever looks at an empty queue walks over all of them. What took long is not done again at once: until
then only what has come since is looked for, at the priorities that are known.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db.models import FloatField

from jobqueue import candidates
from jobqueue.candidates import LEVEL, Head
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.prepared import Prepared, Slot

#: whole looks take a tenth of a poller's time at most, and are never further apart than this. Jobs that come back with
#: an old run_at, that were committed late, or that have a priority which was never seen here, wait so long at most
SHARE, PAUSE_SECONDS_MAX = 10, 10.0
#: a look that took less is done with every poll
QUICK_SECONDS = 0.01
#: '*': under load the names of queues are looked up so often, and a queue that was idle is found so late
BUSY_SECONDS = 0.2
#: '*': a queue that had jobs so lately is looked at also where its name need not be looked up
RECENT_SECONDS = 60.0
# A transaction may commit a job so long after its run_at, and a look need not be a whole one to find it.
_COMMIT_SECONDS = 1.0
_QUEUES_MAX = 10_000
_AGE = Slot("age", FloatField())


def pause_seconds(took: float) -> float:
    """How long a look that took so many seconds is not done again."""
    return 0.0 if took < QUICK_SECONDS else min(PAUSE_SECONDS_MAX, SHARE * took)


class WaitingNames:
    """The names of queues in which jobs wait, for a poller that serves all."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._good_until = 0.0
        self._had_jobs: dict[str, float] = {}

    def find(self, using: str) -> Iterable[str]:
        """Looked up each time; under load, and where that takes long, less often: then those of lately come with them.

        A queue that was idle may be missing for BUSY_SECONDS, or as long as a slow look is not done again.
        """
        begun = time.monotonic()
        if begun < self._good_until:
            return self.lately()
        self._names = tuple(candidates.waiting_names(using=using))
        now = time.monotonic()
        self._good_until = now + max(pause_seconds(now - begun), BUSY_SECONDS if self._names else 0.0)
        return self._names

    def lately(self) -> Iterable[str]:
        """Those of the last look, and those that had jobs a short while ago."""
        oldest = time.monotonic() - RECENT_SECONDS
        self._had_jobs = {name: seen_at for name, seen_at in self._had_jobs.items() if seen_at >= oldest}
        return {*self._names, *self._had_jobs}

    def had_jobs(self, queues: Iterable[str]) -> None:
        """Jobs wait there now."""
        self._had_jobs |= dict.fromkeys(queues, time.monotonic())

    def forget(self) -> None:
        """The next look is not spared."""
        self._good_until = 0.0


@dataclass(slots=True)
class _Whole:
    """What the last whole look at a queue found, which began at `begun` (monotonic)."""

    level: int | None  # nothing waited above this one; None: nothing at all
    begun: float
    good_until: float


class Heads:
    """The memory of one poller."""

    def __init__(self) -> None:
        self._whole: dict[str, _Whole] = {}
        self._levels: dict[str, set[int]] = {}

    def of(self, queues: Sequence[str], *, using: str) -> list[Head]:
        """As candidates.heads(); where that takes long, some may be missing for a while: see PAUSE_SECONDS_MAX."""
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
        levels = {head.queue: head.level for head in found}
        for queue in queues:
            self._whole[queue] = _Whole(levels.get(queue), begun, now + pause_seconds(now - begun))
        self._remember(found)
        return found

    def _look_since(self, queues: Sequence[str], now: float, using: str) -> list[Head]:
        """The highest of what came since the whole look, and of what waited then or below that."""
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
            # What was seen then may have gone; then the next look need not walk over it.
            head = waiting.get(run["queue"])
            self._whole[run["queue"]].level = head.level if head else None
        return list((waiting | _heads(_new_in_level(using), above)).values())

    def _of(self, queues: Iterable[str]) -> list[tuple[str, _Whole]]:
        return [(queue, self._whole[queue]) for queue in queues]

    def _remember(self, heads: Iterable[Head]) -> None:
        for head in heads:
            if head.level is not None:
                self._levels.setdefault(head.queue, set()).add(head.level)


def _heads(look: Prepared, runs: Sequence[dict[str, Any]]) -> dict[str, Head]:
    """By queue the head with the highest level."""
    found: dict[str, Head] = {}
    for start in range(0, len(runs), 100):
        for head in map(Head._make, look.rows_of_each(runs[start : start + 100])):
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
