"""Thousands of keys that wait for something: which of them a relay need not look at again and again.

Lanes of keys are hashes, so ranges of equal width have about as many each. A range in which nothing was due is left
alone until something in it is, as far as was seen. What that cannot show is looked for apart: events that are new, by
their ids; and after a while every range is looked at again, for what was given back, retried or committed late.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from jobqueue.db.retry import retry_transient
from jobqueue.outbox import lanes, statements

#: first lanes that are due, each with its first event
Heads = dict[int, int]
#: of each of these lanes its first pending event: id, lane, whether due
Fronts = Callable[[Mapping[int, int]], Iterable[tuple[int, int, bool]]]

_END = 2**63
#: a range is looked at again after this long, or later where there are many: so many looks a second
REVISIT_SECONDS, _LOOKS_A_SECOND = 5.0, 10
#: a transaction that is open for longer, and took its ids before others, is found by a revisit
_LATE_SECONDS = 2.0
_FRESH_MAX = 1000


@dataclass(slots=True)
class _Range:
    look_at: float = 0.0
    keys: int = lanes.WINDOW


class PollRanges:
    """The memory of one relay. `on` while at least a window full of keys waits."""

    def __init__(self, using: str, fronts: Fronts) -> None:
        self._using, self._fronts = using, fronts
        self._ranges: list[_Range] = []
        self._passed = 0
        self._fresh = _NewEvents(using)

    @property
    def on(self) -> bool:
        """Whether looks are to be saved."""
        return bool(self._ranges)

    def passed(self, count: int) -> None:
        """A full look at `count` keys found none to take."""
        self._passed += count
        if not self.on and self._passed >= lanes.WINDOW:
            self._ranges = [_Range()]
            self._fresh.begin()

    def begin_round(self) -> None:
        """All keys that wait are passed again."""
        self._passed = 0

    def look(self, after: int, limit: int) -> tuple[Heads, int]:
        """Up to `limit` keys above `after` that are due, and where the next look begins; LOWEST: the round is over."""
        width = _END // len(self._ranges)
        number, now = after // width, time.monotonic()
        if after == number * width:
            while number < len(self._ranges) and self._ranges[number].look_at > now:
                number += 1
            after = number * width
        if number == len(self._ranges):
            return self._end_round(limit), lanes.LOWEST
        return self._look_at(number, width, after, limit)

    def _look_at(self, number: int, width: int, after: int, limit: int) -> tuple[Heads, int]:
        whole, end = after == number * width, (number + 1) * width
        found = retry_transient(lambda: lanes.heads(after, using=self._using, limit=lanes.WINDOW), using=self._using)
        heads = {lane: head for lane, head in found.items() if lane <= end}
        if len(heads) == lanes.WINDOW:
            self._split()
            end, whole = max(heads), False
        waits = self._waits(heads)
        due = {lane: head for lane, head in heads.items() if waits.get(head, 1.0) <= 0}
        if whole:
            self._ranges[number].keys = len(heads)
            if not due:
                self._leave(number, min(waits.values(), default=REVISIT_SECONDS))
        if len(due) > limit:
            due = dict(sorted(due.items())[:limit])
            return due, max(due)
        return due, end

    def _split(self) -> None:
        self._ranges = [_Range(each.look_at, each.keys // 2) for each in self._ranges for _ in range(2)]

    def _leave(self, number: int, seconds: float) -> None:
        longest = max(REVISIT_SECONDS, len(self._ranges) / _LOOKS_A_SECOND) * random.uniform(0.8, 1.2)
        self._ranges[number].look_at = time.monotonic() + min(seconds, longest)

    def _waits(self, heads: Heads) -> dict[int, float]:
        """By id the seconds until each is due; dead letters and deleted events are left out."""
        if not heads:
            return {}
        ids = sorted(heads.values())
        rows = retry_transient(lambda: statements.waits(self._using).rows(ids=ids), using=self._using)
        return {event_id: (due - now).total_seconds() for event_id, due, now in rows if due is not None}

    def _end_round(self, limit: int) -> Heads:
        if sum(each.keys for each in self._ranges) < lanes.WINDOW // 2:
            self._ranges = []
            return {}
        asked = self._fresh.lanes()
        if len(asked) > _FRESH_MAX:
            for each in self._ranges:
                each.look_at = 0.0
            self._fresh.forget(asked)
            return {}
        found = (
            {lane: event_id for event_id, lane, due in self._fronts(dict.fromkeys(asked, 0)) if due} if asked else {}
        )
        # What is taken may have more behind it.
        self._fresh.forget(asked - found.keys())
        return dict(sorted(found.items())[:limit])


class _NewEvents:
    """The keys of events that were published lately."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._lanes: set[int] = set()
        #: ids that were seen, by the time at which everything below was
        self._seen: dict[int, float] = {}
        self._floor = 0

    def begin(self) -> None:
        """From now on."""
        self._lanes, self._seen = set(), {}
        self._floor = retry_transient(lambda: statements.last_id(self._using), using=self._using)

    def lanes(self) -> set[int]:
        """Those of new events, and those that were not forgotten since."""
        now = time.monotonic()
        for event_id in [seen for seen, at in self._seen.items() if now - at > _LATE_SECONDS]:
            self._floor = max(self._floor, event_id)
            del self._seen[event_id]
        rows = retry_transient(
            lambda: statements.published(self._using, _FRESH_MAX).rows(since=self._floor), using=self._using
        )
        for event_id, lane in rows:
            if event_id not in self._seen:
                self._seen[event_id] = now
                self._lanes.add(lane)
        if len(rows) == _FRESH_MAX:
            self._floor = rows[-1][0]
        return set(self._lanes)

    def forget(self, some: Iterable[int]) -> None:
        """Nothing of these is due now."""
        self._lanes.difference_update(some)
