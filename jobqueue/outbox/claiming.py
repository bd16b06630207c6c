"""Claims events for a relay: of a key the first pending ones, without a key those that are due."""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from django.db import connections

from jobqueue.db import vendor
from jobqueue.db.retry import retry_transient
from jobqueue.db.stuck_statements import watched
from jobqueue.outbox import lanes, statements
from jobqueue.outbox.event import Event, readable
from jobqueue.outbox.poll_ranges import PollRanges
from jobqueue.outbox.statements import EventRow
from jobqueue.transitions.claiming.claimer import refuse_open_transaction

#: lanes whose fronts are read by one statement
_FRONTS_MAX = 50


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
        self._topic_lanes = frozenset(map(lanes.topic_lane, topics or ()))
        # At random: relays that begin at the same lane would compete for the same lanes.
        self._after = random.randrange(lanes.LOWEST, -lanes.LOWEST)
        # Whether the round under way began at the lowest lane and has found nothing to claim.
        self._fruitless = False
        self._cursors = lanes.TopicCursors()
        self._ranges = PollRanges(
            using, lambda since: [(row[0], row[1], row[2]) for row in self._read_fronts(since, 1)]
        )
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
        heads = self._next_lanes(min(limit, lanes.WINDOW))
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

    def _next_lanes(self, limit: int) -> dict[int, int]:
        """Up to `limit` lanes with pending events after the last ones, each with its first event; of one round only."""
        from_start = self._after == lanes.LOWEST
        heads = self._look(limit)
        if not heads and not from_start:
            heads = self._look(limit)
        if self._topics is None:
            return heads
        return {lane: head for lane, head in heads.items() if lane > 0 or lane in self._topic_lanes}

    def _look(self, limit: int) -> dict[int, int]:
        after = self._after
        if after == lanes.LOWEST:
            self._fruitless = True
            self._ranges.begin_round()
        if self._ranges.active:
            return self._poll_ranges(after, limit)
        heads = retry_transient("relay", lambda: lanes.heads(after, using=self._using, limit=limit), using=self._using)
        if len(heads) == limit:
            self._after = max(heads)
        else:
            # The end of a round.
            self._after = lanes.LOWEST
            self.idle = self.idle or self._fruitless
        return heads

    def _poll_ranges(self, after: int, limit: int) -> dict[int, int]:
        """_look() that skips ranges of keys in which nothing is due."""
        if after >= 0:
            heads, self._after = self._ranges.poll(after, limit)
            if self._after == lanes.LOWEST:
                self.idle = self.idle or self._fruitless
            return heads
        found = retry_transient("relay", lambda: lanes.heads(after, using=self._using, limit=limit), using=self._using)
        heads = {lane: head for lane, head in found.items() if lane < 0}
        self._after = max(heads) if heads and len(heads) == limit else 0
        return heads

    def _take(self, heads: Mapping[int, int], limit: int) -> Batch | None:
        using = self._using
        keys, topics = {lane: heads[lane] for lane in heads if lane > 0}, [lane for lane in heads if lane < 0]
        with vendor(using).transaction(connections[using]):
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
        """Of each lane up to `share` pending events from an id on, lowest first: id, lane, whether due, token."""
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
