"""Which events a relay takes: of a key the first pending ones, without a key those that are due."""

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
from jobqueue.db.cutting import watched
from jobqueue.db.retry import retry_transient
from jobqueue.outbox import lanes, statements
from jobqueue.outbox.crowd import Crowd
from jobqueue.outbox.event import Event, readable
from jobqueue.outbox.floors import Floors
from jobqueue.outbox.statements import Row
from jobqueue.transitions.claiming import refuse_open_transaction

#: lanes whose fronts are read by one statement
_FRONTS_MAX = 50


class _Overtaken(Exception):
    """Another relay took some of these events meanwhile."""


@dataclass(slots=True)
class Batch:
    """Events that one relay may deliver until `until` (time.monotonic), in order within each lane."""

    token: bytes
    until: float
    lanes: dict[int, list[Event]] = field(default_factory=dict)
    #: leased, and nothing has become of them yet
    left: set[int] = field(default_factory=set)
    #: delivered, and not marked yet
    unmarked: list[int] = field(default_factory=list)
    #: the same, and the watch of the delivery marks them
    handed: list[int] = field(default_factory=list)
    #: what is left was given back: nothing more of it may be sent
    ended: bool = False

    def __post_init__(self) -> None:
        self.left = {event.id for events in self.lanes.values() for event in events}

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))


class Claimer:
    """Goes round all lanes, so that a hot key or a full topic does not keep others waiting."""

    def __init__(self, using: str, *, lease_seconds: float, topics: Collection[str] | None = None) -> None:
        self._using, self._lease_seconds = using, lease_seconds
        self._topics = None if topics is None else tuple(sorted(topics))
        self._topic_lanes = frozenset(map(lanes.topic_lane, topics or ()))
        # Relays that begin at the same place would take turns at the same lanes.
        self._after = random.randrange(lanes.LOWEST, -lanes.LOWEST)
        # Of the round under way: it began at the lowest lane, and has found nothing to take.
        self._fruitless = False
        self._floors = Floors()
        self._crowd = Crowd(using, lambda since: [(row[0], row[1], row[2]) for row in self._read_fronts(since, 1)])
        #: a whole round has found nothing to take
        self.idle = False

    def claim(self, limit: int) -> Batch | None:
        """Up to `limit` events of the next lanes, committed as leased; None when there are none in this stretch.

        Raises DatabaseBusy after repeated deadlocks; InsideTransaction, for then nothing would be committed.
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
            batch = retry_transient(lambda: self._take(heads, limit), using=self._using)
        except _Overtaken:
            self._fruitless = self.idle = False
            return None
        if batch is None:
            if len(heads) == limit and self._topics is None:
                self._crowd.passed(sum(lane > 0 for lane in heads))
        else:
            self._fruitless = self.idle = False
            # From before the statement: the lease cannot end earlier than we think.
            batch.until = begun + self._lease_seconds
        return batch

    def _next_lanes(self, limit: int) -> dict[int, int]:
        """Up to `limit` active lanes after the last ones, each with its first event; what is left of a round, alone."""
        anew = self._after == lanes.LOWEST
        heads = self._look(limit)
        if not heads and not anew:
            heads = self._look(limit)
        if self._topics is None:
            return heads
        return {lane: head for lane, head in heads.items() if lane > 0 or lane in self._topic_lanes}

    def _look(self, limit: int) -> dict[int, int]:
        after = self._after
        if after == lanes.LOWEST:
            self._fruitless = True
            self._crowd.begin_round()
        if self._crowd.on:
            return self._look_in_the_crowd(after, limit)
        heads = retry_transient(lambda: lanes.heads(after, using=self._using, limit=limit), using=self._using)
        if len(heads) == limit:
            self._after = max(heads)
        else:
            # The end of a round.
            self._after = lanes.LOWEST
            self.idle = self.idle or self._fruitless
        return heads

    def _look_in_the_crowd(self, after: int, limit: int) -> dict[int, int]:
        """The same, of keys only those that are due, or perhaps are."""
        if after >= 0:
            heads, self._after = self._crowd.look(after, limit)
            if self._after == lanes.LOWEST:
                self.idle = self.idle or self._fruitless
            return heads
        found = retry_transient(lambda: lanes.heads(after, using=self._using, limit=limit), using=self._using)
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
            lease = statements.lease_lapsed(using) if lapsed else statements.lease(using)
            # The statement asks again whether they are due: not every database kept them locked since they were read.
            if lease.change(ids=ids, token=token, seconds=self._lease_seconds) != len(ids):
                raise _Overtaken
        return Batch(token, 0.0, _events(rows, charge=int(lapsed)))

    def _lock_fronts(self, heads: Mapping[int, int], share: int) -> list[list[Row]]:
        """Up to `share` events of each lane whose first one is due and could be locked: who has that, has the lane."""
        if self._topics is not None:
            heads = {lane: event_id for event_id, lane, _, _ in self._read_fronts(heads, 1)}
        if not heads:
            return []
        locked = map(Row._make, statements.lock_heads(self._using).rows(ids=sorted(heads.values())))
        fronts = {row.lane: [row] for row in locked if heads.get(row.lane) == row.pk}
        if share > 1 and fronts:
            # Behind the first event.
            rest = self._read_fronts({lane: front[0].pk + 1 for lane, front in fronts.items()}, share - 1)
            for row in self._contents(rest):
                fronts[row.lane].append(row)
        return list(fronts.values())

    def _read_fronts(self, since: Mapping[int, int], share: int) -> list[tuple[int, int, bool, Any]]:
        """Of each lane up to `share` pending events from an id on, lowest first: id, lane, whether due, token."""
        runs = [{"lane": lane, "since": event_id} for lane, event_id in since.items()]
        front = statements.front(self._using, share, self._topics)
        found: list[Any] = []
        for start in range(0, len(runs), _FRONTS_MAX):
            found += front.rows_of_each(runs[start : start + _FRONTS_MAX])
        return sorted(found)

    def _contents(self, found: Sequence[tuple[int, int, bool, Any]]) -> list[Row]:
        """The events up to the first one of their lane that is not to be taken now, or whose relay fell silent."""
        ended, ids = set(), []
        for event_id, lane, due, token in found:
            if not due or token is not None:
                ended.add(lane)
            elif lane not in ended:
                ids.append(event_id)
        return [Row._make(row) for row in statements.read(self._using).rows(ids=ids)] if ids else []

    def _lock_due(self, lane: int, limit: int) -> list[Row]:
        """Those of a topic that are due, from where the last look ended; from the first if that is not enough."""
        floor, rows = self._floors.of(lane), list[Any]()
        if floor is not None:
            rows = statements.lock_due_from(self._using, limit).rows(lane=lane, since=floor)
        if len(rows) < limit:
            rows = statements.lock_due(self._using, limit).rows(lane=lane)
        found = [Row._make(row) for row in rows]
        self._floors.keep(lane, found[-1].due if len(found) == limit else None)
        return found


def _alone_if_lapsed(taken: list[list[Row]]) -> tuple[list[Row], bool]:
    """The events to lease. One whose relay fell silent goes alone: if it kills relays, it takes no others along."""
    for lane in taken:
        if lane and lane[0].lock_token is not None:
            return [lane[0]], True
    sound = [takewhile(lambda row: row.lock_token is None, lane) for lane in taken]
    return [row for lane in sound for row in lane], False


def _events(rows: Sequence[Row], *, charge: int) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.pk):
        attempt = row.attempts + charge + 1
        found[row.lane].append(Event(row.pk, row.topic, readable(row.key), row.payload, row.made, attempt))
    return dict(found)
