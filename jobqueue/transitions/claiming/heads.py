"""How a worker finds queues and their heads repeatedly without reading the same old index entries each time.

While any transaction keeps an old snapshot open, the index entries of the jobs that were claimed since cannot be
purged, and a look at an empty queue reads all of them. A look that took long is not repeated at once: until then, only
newer jobs are looked for, at the priorities that are known. One that took long may have waited, for a lock or a server
that stood still, and not have read much: so of two looks, one after the other, the shorter one counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db.models import FloatField

from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.expressions import Slot
from jobqueue.db.prepared import Prepared
from jobqueue.transitions.claiming import candidates
from jobqueue.transitions.claiming.candidates import LEVEL, Head

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
