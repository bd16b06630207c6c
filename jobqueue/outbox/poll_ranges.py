"""Which keys a relay polls while thousands of keys wait: those in ranges in which an event may be due.

Lanes of keys are hashes, so ranges of equal width hold about the same number of lanes. After a poll of a range finds
nothing due, the range is skipped until its first event becomes due. Two kinds of events need more: new events are found
by their ids, and every range is polled again after a while for events that were released, retried or committed late.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from jobqueue.db.retry import retry_transient
from jobqueue.outbox import lanes, statements

#: lanes that are due, each with the id of its first event
Heads = dict[int, int]
#: reads the first pending event of each of these lanes: id, lane, whether due
Fronts = Callable[[Mapping[int, int]], Iterable[tuple[int, int, bool]]]

_END = 2**63
#: a range is polled again after this time, or later where ranges are many: at most so many polls a second
REVISIT_SECONDS, _POLLS_A_SECOND = 5.0, 10
#: ids may commit this late after higher ones; later ones are found when their range is polled again
_LATE_SECONDS = 2.0
_NEW_MAX = 1000


@dataclass(slots=True)
class _Range:
    poll_at: float = 0.0
    keys: int = lanes.WINDOW


class PollRanges:
    """The memory of one relay; `active` while at least WINDOW keys wait."""

    def __init__(self, using: str, fronts: Fronts) -> None:
        self._using, self._fronts = using, fronts
        self._ranges: list[_Range] = []
        self._passed = 0
        self._new_events = _NewEvents(using)

    @property
    def active(self) -> bool:
        """Whether ranges are skipped."""
        return bool(self._ranges)

    def passed(self, count: int) -> None:
        """Count keys of a full window of which none could be claimed."""
        self._passed += count
        if not self.active and self._passed >= lanes.WINDOW:
            self._ranges = [_Range()]
            self._new_events.begin()

    def begin_round(self) -> None:
        """Count from zero: a round reads all waiting keys again."""
        self._passed = 0

    def poll(self, after: int, limit: int) -> tuple[Heads, int]:
        """Up to `limit` keys above `after` that are due, and where the next poll begins; LOWEST: the round is over."""
        width = _END // len(self._ranges)
        number, now = after // width, time.monotonic()
        if after == number * width:
            while number < len(self._ranges) and self._ranges[number].poll_at > now:
                number += 1
            after = number * width
        if number == len(self._ranges):
            return self._end_round(limit), lanes.LOWEST
        return self._poll(number, width, after, limit)

    def _poll(self, number: int, width: int, after: int, limit: int) -> tuple[Heads, int]:
        whole, end = after == number * width, (number + 1) * width
        found = retry_transient(
            "relay", lambda: lanes.heads(after, using=self._using, limit=lanes.WINDOW), using=self._using
        )
        heads = {lane: head for lane, head in found.items() if lane <= end}
        if len(heads) == lanes.WINDOW:
            self._ranges = [_Range(each.poll_at, each.keys // 2) for each in self._ranges for _ in range(2)]
            end, whole = max(heads), False
        waits = self._waits(heads)
        due = {lane: head for lane, head in heads.items() if waits.get(head, 1.0) <= 0}
        if whole:
            self._ranges[number].keys = len(heads)
            if not due:
                self._skip(number, min(waits.values(), default=REVISIT_SECONDS))
        if len(due) > limit:
            due = dict(sorted(due.items())[:limit])
            return due, max(due)
        return due, end

    def _skip(self, number: int, seconds: float) -> None:
        longest = max(REVISIT_SECONDS, len(self._ranges) / _POLLS_A_SECOND) * random.uniform(0.8, 1.2)
        self._ranges[number].poll_at = time.monotonic() + min(seconds, longest)

    def _waits(self, heads: Heads) -> dict[int, float]:
        """Seconds until each event is due, by id; without dead letters and deleted events."""
        if not heads:
            return {}
        ids = sorted(heads.values())
        rows = retry_transient("relay", lambda: statements.waits(self._using).rows(ids=ids), using=self._using)
        return {event_id: (due - now).total_seconds() for event_id, due, now in rows if due is not None}

    def _end_round(self, limit: int) -> Heads:
        if sum(each.keys for each in self._ranges) < lanes.WINDOW // 2:
            self._ranges = []
            return {}
        asked = self._new_events.lanes()
        if len(asked) > _NEW_MAX:
            for each in self._ranges:
                each.poll_at = 0.0
            self._new_events.forget(asked)
            return {}
        found = (
            {lane: event_id for event_id, lane, due in self._fronts(dict.fromkeys(asked, 0)) if due} if asked else {}
        )
        # What is taken may have more behind it.
        self._new_events.forget(asked - found.keys())
        return dict(sorted(found.items())[:limit])


class _NewEvents:
    """The keys of events that were published lately."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._lanes: set[int] = set()
        #: ids behind the cursor that were read
        self._seen: set[int] = set()
        #: when a scan began that has read everything up to an id; after _LATE_SECONDS the next one begins behind that
        self._read_to: deque[tuple[float, int]] = deque()
        self._cursor = 0

    def begin(self) -> None:
        """Find events that are published from now on."""
        self._lanes, self._seen = set(), set()
        self._read_to.clear()
        self._cursor = self._last()

    def lanes(self) -> set[int]:
        """The lanes of new events, and earlier ones that were not forgotten."""
        # Before the scan. Of all events: those without a key, and those that others deliver, need not be read again.
        now, last = time.monotonic(), self._last()
        while self._read_to and now - self._read_to[0][0] > _LATE_SECONDS:
            self._cursor = max(self._cursor, self._read_to.popleft()[1])
        rows = retry_transient(
            "relay", lambda: statements.published(self._using, _NEW_MAX).rows(since=self._cursor), using=self._using
        )
        self._lanes |= {lane for event_id, lane in rows if event_id not in self._seen}
        if len(rows) == _NEW_MAX:
            self._cursor = rows[-1][0]
        elif not self._read_to or self._read_to[-1][1] < last:
            self._read_to.append((now, last))
        self._seen = {event_id for event_id, _ in rows if event_id > self._cursor}
        return set(self._lanes)

    def _last(self) -> int:
        return retry_transient("relay", lambda: statements.last_id(self._using), using=self._using)

    def forget(self, some: Iterable[int]) -> None:
        """Drop lanes of which nothing is due now."""
        self._lanes.difference_update(some)
