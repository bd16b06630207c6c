"""Claims events for a relay: of a key the first pending ones, without a key those that are due.

While thousands of keys wait, a relay polls those in ranges in which an event may be due, see PollRanges.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Any

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.db.sessions import IDLE_SECONDS
from jobqueue.db.time_limit import watched
from jobqueue.outbox import statements
from jobqueue.outbox.destinations.base import Event, readable
from jobqueue.outbox.statements import EventRow
from jobqueue.transitions.claiming.claimer import refuse_open_transaction

#: lanes whose fronts are read by one statement
_FRONTS_MAX = 50
# Events may appear behind a cursor: late commits, retries by hand. They wait this long at most.
CURSOR_SECONDS = 1.0
_END = 2**63
#: a range is polled again after this time, or later where ranges are many: at most so many polls a second
REVISIT_SECONDS, _POLLS_A_SECOND = 5.0, 10
#: ids may commit this late after higher ones; later ones are found when their range is polled again
_LATE_SECONDS = 2.0
_NEW_MAX = 1000

#: lanes, each with the id of its first event
Heads = dict[int, int]
#: id, lane, whether due, token
_Front = tuple[int, int, bool, bytes | None]


class _ClaimedElsewhere(Exception):
    """Another relay has claimed some of these events."""


@dataclass(slots=True)
class Batch:
    """Events that one relay may deliver until `until` (time.monotonic), in order within each lane."""

    token: bytes
    until: float
    lanes: dict[int, list[Event]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)  # leased, not delivered and not failed yet
    unmarked: list[int] = field(default_factory=list)  # delivered, and not marked yet
    #: delivered, and handed to the watch of the delivery, which marks them
    handed: list[int] = field(default_factory=list)
    ended: bool = False  # what is left was released: no more of it may be sent

    def __post_init__(self) -> None:
        self.left = {event.id for events in self.lanes.values() for event in events}

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))


class EventClaimer:
    """Claims from all lanes in turn, so that a hot key or a full topic does not keep others waiting."""

    def __init__(self, using: str, *, lease_seconds: float, topics: Collection[str] | None = None) -> None:
        self._using, self._lease_seconds = using, lease_seconds
        self._topics = None if topics is None else tuple(sorted(topics))
        self._topic_lanes = frozenset(map(statements.topic_lane, topics or ()))
        # At random: relays that begin at the same lane would compete for the same lanes.
        self._after = random.randrange(statements.LOWEST, -statements.LOWEST)
        # Whether the round under way began at the lowest lane and has found nothing to claim.
        self._fruitless = False
        self._cursors = TopicCursors()
        self._ranges = PollRanges(using, lambda since: self._read_fronts(since, 1))
        #: whether a whole round found nothing to claim
        self.idle = False

    def claim(self, limit: int) -> Batch | None:
        """Lease up to `limit` events of the next lanes and commit; None when these lanes have none to claim.

        Raises DatabaseBusy after repeated deadlocks; InsideTransaction, because nothing would be committed.
        """
        refuse_open_transaction(self._using, "relay")
        with watched(connections[self._using]):
            return self._claim(limit)

    def _claim(self, limit: int) -> Batch | None:
        self.idle = False
        heads = self._next_lanes(min(limit, statements.WINDOW))
        if not heads:
            return None
        begun = time.monotonic()
        try:
            batch = retry_transient("relay", lambda: self._take(heads, limit), using=self._using)
        except _ClaimedElsewhere:
            self._fruitless = self.idle = False
            return None
        if batch is None:
            if len(heads) == limit and self._topics is None:
                self._ranges.passed(sum(lane > 0 for lane in heads))
        else:
            self._fruitless = self.idle = False
            # Counted from before the statement, so that the lease does not end earlier than this process thinks.
            batch.until = begun + self._lease_seconds
        return batch

    def _next_lanes(self, limit: int) -> Heads:
        """Up to `limit` lanes with pending events after the last ones, each with its first event; of one round only."""
        from_start = self._after == statements.LOWEST
        heads = self._look(limit)
        if not heads and not from_start:
            heads = self._look(limit)
        if self._topics is None:
            return heads
        return {lane: head for lane, head in heads.items() if lane > 0 or lane in self._topic_lanes}

    def _look(self, limit: int) -> Heads:
        after = self._after
        if after == statements.LOWEST:
            self._fruitless = True
            self._ranges.begin_round()
        if self._ranges.active:
            return self._poll_ranges(after, limit)
        heads = _read_heads(after, limit, self._using)
        if len(heads) == limit:
            self._after = max(heads)
        else:
            # The end of a round.
            self._after = statements.LOWEST
            self.idle = self.idle or self._fruitless
        return heads

    def _poll_ranges(self, after: int, limit: int) -> Heads:
        """_look() that skips ranges of keys in which nothing is due."""
        if after >= 0:
            heads, self._after = self._ranges.poll(after, limit)
            if self._after == statements.LOWEST:
                self.idle = self.idle or self._fruitless
            return heads
        heads = {lane: head for lane, head in _read_heads(after, limit, self._using).items() if lane < 0}
        self._after = max(heads) if heads and len(heads) == limit else 0
        return heads

    def _take(self, heads: Mapping[int, int], limit: int) -> Batch | None:
        using = self._using
        keys, topics = {lane: heads[lane] for lane in heads if lane > 0}, [lane for lane in heads if lane < 0]
        # A relay that is frozen in here must not keep the events: the session of a relay has no limit of its own, for
        # subscribers may take as long as they want.
        with vendor(using).limited_transaction(connections[using], IDLE_SECONDS):
            taken = self._lock_fronts(keys, max(1, limit // len(heads)))
            for left, lane in zip(range(len(topics), 0, -1), topics, strict=True):
                taken.append(self._lock_due(lane, max(1, (limit - sum(map(len, taken))) // left)))
            rows, lapsed = _alone_if_lapsed(taken)
            if not rows:
                return None
            ids, token = sorted(row.pk for row in rows), uuid.uuid4().bytes
            lease = statements.lease(using, lapsed=lapsed)
            # The statement checks again that they are due: not every database kept them locked since they were read.
            if lease.change(ids=ids, token=token, seconds=self._lease_seconds) != len(ids):
                raise _ClaimedElsewhere
        return Batch(token, 0.0, _events(rows, charge=int(lapsed)))

    def _lock_fronts(self, heads: Mapping[int, int], share: int) -> list[list[EventRow]]:
        """Up to `share` events of each lane whose first event is due and could be locked, which locks the lane."""
        if self._topics is not None:
            heads = {lane: event_id for event_id, lane, _, _ in self._read_fronts(heads, 1)}
        if not heads:
            return []
        locked = map(EventRow._make, statements.lock_heads(self._using).rows(ids=sorted(heads.values())))
        fronts = {row.lane: [row] for row in locked if heads.get(row.lane) == row.pk}
        if share > 1 and fronts:
            # Behind the first event.
            rest = self._read_fronts({lane: front[0].pk + 1 for lane, front in fronts.items()}, share - 1)
            for row in self._contents(rest):
                fronts[row.lane].append(row)
        return list(fronts.values())

    def _read_fronts(self, since: Mapping[int, int], share: int) -> list[_Front]:
        """Read up to `share` pending events of each lane from an id on, lowest first: id, lane, whether due, token."""
        runs = [{"lane": lane, "since": event_id} for lane, event_id in since.items()]
        return sorted(statements.front(self._using, share, self._topics).rows_of_each(runs, _FRONTS_MAX))

    def _contents(self, found: Sequence[_Front]) -> list[EventRow]:
        """The events before the first one of their lane that is not due, or whose relay did not settle it."""
        ended, ids = set(), []
        for event_id, lane, due, token in found:
            if not due or token is not None:
                ended.add(lane)
            elif lane not in ended:
                ids.append(event_id)
        return [EventRow._make(row) for row in statements.read(self._using).rows(ids=ids)] if ids else []

    def _lock_due(self, lane: int, limit: int) -> list[EventRow]:
        """Lock due events of a topic from its cursor on; from the head if that finds fewer than `limit`."""
        cursor, rows = self._cursors.of(lane), list[tuple[Any, ...]]()
        if cursor is not None:
            rows = statements.lock_due(self._using, limit, since=True).rows(lane=lane, since=cursor)
        if len(rows) < limit:
            rows = statements.lock_due(self._using, limit, since=False).rows(lane=lane)
        found = [EventRow._make(row) for row in rows]
        self._cursors.keep(lane, found[-1].due if len(found) == limit else None)
        return found


def _alone_if_lapsed(taken: list[list[EventRow]]) -> tuple[list[EventRow], bool]:
    """The events to lease. One whose relay did not settle it goes alone: if it kills relays, no others are charged."""
    for lane in taken:
        if lane and lane[0].lock_token is not None:
            return [lane[0]], True
    sound = [takewhile(lambda row: row.lock_token is None, lane) for lane in taken]
    return [row for lane in sound for row in lane], False


def _events(rows: Sequence[EventRow], *, charge: int) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.pk):
        attempt = row.attempts + charge + 1
        found[row.lane].append(Event(row.pk, row.topic, readable(row.key), row.payload, row.made, attempt))
    return dict(found)


def _read_heads(after: int, limit: int, using: str) -> Heads:
    return retry_transient("relay", lambda: statements.heads(after, using=using, limit=limit), using=using)


class TopicCursors:
    """Where one relay's next scan of each topic's lane begins: when the last event that it took became due.

    While a transaction keeps an old snapshot open, index entries of delivered events cannot be purged, and a scan from
    the head of a topic reads all of them. A lane that gave less than was asked for is scanned from its head again.
    """

    def __init__(self) -> None:
        self._due: dict[int, datetime] = {}
        self._good_until = 0.0

    def of(self, lane: int) -> datetime | None:
        """Where to begin; None: at the head."""
        now = time.monotonic()
        if now >= self._good_until:
            # All at once: lanes come and go, and the memory must not grow with them.
            self._due, self._good_until = {}, now + CURSOR_SECONDS
        return self._due.get(lane)

    def keep(self, lane: int, due: datetime | None) -> None:
        """Begin the next scan at `due`; None: at the head."""
        if due is None:
            self._due.pop(lane, None)
        else:
            self._due[lane] = due


@dataclass(slots=True)
class _Range:
    poll_at: float = 0.0
    keys: int = statements.WINDOW


class PollRanges:
    """The memory of one relay for keys of which nothing is due; `active` while at least WINDOW keys wait.

    Lanes of keys are hashes, so ranges of equal width hold about the same number of lanes. After a poll of a range
    finds nothing due, the range is skipped until its first event becomes due. Two kinds of events need more: new events
    are found by their ids, and every range is polled again after a while for events that were released, retried or
    committed late. `fronts` reads the first pending event of each of these lanes.
    """

    def __init__(self, using: str, fronts: Callable[[Mapping[int, int]], Iterable[_Front]]) -> None:
        self._using, self._fronts = using, fronts
        self._ranges: list[_Range] = []
        self._passed = 0
        self._new_events = _NewEvents(using)

    @property
    def active(self) -> bool:
        """True if ranges are skipped."""
        return bool(self._ranges)

    def passed(self, count: int) -> None:
        """Count keys of a full window of which none could be claimed."""
        self._passed += count
        if not self.active and self._passed >= statements.WINDOW:
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
            return self._end_round(limit), statements.LOWEST
        return self._poll(number, width, after, limit)

    def _poll(self, number: int, width: int, after: int, limit: int) -> tuple[Heads, int]:
        whole, end = after == number * width, (number + 1) * width
        found = _read_heads(after, statements.WINDOW, self._using)
        heads = {lane: head for lane, head in found.items() if lane <= end}
        if len(heads) == statements.WINDOW:
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
        if sum(each.keys for each in self._ranges) < statements.WINDOW // 2:
            self._ranges = []
            return {}
        asked = self._new_events.lanes()
        if len(asked) > _NEW_MAX:
            for each in self._ranges:
                each.poll_at = 0.0
            self._new_events.forget(asked)
            return {}
        fronts = self._fronts(dict.fromkeys(asked, 0)) if asked else []
        found = {lane: event_id for event_id, lane, due, _ in fronts if due}
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
