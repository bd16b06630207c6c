"""Which events a relay takes: of a key the first pending ones, without a key those that are due."""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import BooleanField, ExpressionWrapper, F, Q, QuerySet

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.prepared import Prepared, Slot, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.models import OutboxEvent
from jobqueue.outbox import lanes
from jobqueue.outbox.event import Event, readable
from jobqueue.outbox.floors import Floors
from jobqueue.transitions.claiming import refuse_open_transaction


class _Candidate(NamedTuple):
    event_id: int
    lapsed: bool  # somebody's lease on it ran out


class _Overtaken(Exception):
    """Another relay took some of these events meanwhile."""


@dataclass(slots=True)
class Batch:
    """Events that one relay may deliver until `until` (time.monotonic), in order within each lane."""

    token: bytes
    until: float
    lanes: dict[int, list[Event]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))


class Claimer:
    """Goes round all lanes, so that a hot key or a full topic does not keep others waiting."""

    def __init__(self, using: str, *, lease_seconds: float, topics: Collection[str] | None = None) -> None:
        self._using, self._lease_seconds = using, lease_seconds
        self._topics = None if topics is None else sorted(topics)
        # Relays that begin at the same place would take turns at the same lanes.
        self._after = random.randrange(lanes.LOWEST, -lanes.LOWEST)
        self._fruitless_rounds = 0
        self._floors = Floors()
        #: a whole round has found nothing to take
        self.idle = False

    def claim(self, limit: int) -> Batch | None:
        """Up to `limit` events of the next lanes, committed as leased; None when there are none in this stretch.

        Raises DatabaseBusy after repeated deadlocks; InsideTransaction, for then nothing would be committed.
        """
        refuse_open_transaction(self._using, "relay")
        found = self._next_lanes(min(limit, lanes.WINDOW))
        if found:
            begun = time.monotonic()
            try:
                batch = retry_transient(lambda: self._take(found, limit), using=self._using)
            except _Overtaken:
                return None
            if batch is not None:
                self._fruitless_rounds, self.idle = 0, False
                # From before the statement: the lease cannot end earlier than we think.
                batch.until = begun + self._lease_seconds
                return batch
        self.idle = self._fruitless_rounds >= 2
        return None

    def _next_lanes(self, limit: int) -> list[int]:
        """Up to `limit` active lanes after the last ones, going round."""
        found = self._active(self._after, limit)
        if len(found) < limit:
            rest = self._active(lanes.LOWEST, limit)
            # A round that is seen at one look is a whole one.
            self._fruitless_rounds += 2 if len(rest) < limit else 1
            found += [lane for lane in rest if lane not in set(found)][: limit - len(found)]
        if found:
            self._after = found[-1]
        if self._topics is not None:
            served = {lanes.topic_lane(topic) for topic in self._topics}
            found = [lane for lane in found if lane > 0 or lane in served]
        return found

    def _active(self, after: int, limit: int) -> list[int]:
        return retry_transient(lambda: lanes.active(after, using=self._using, limit=limit), using=self._using)

    def _take(self, found: Sequence[int], limit: int) -> Batch | None:
        using = self._using
        keys, topics = [lane for lane in found if lane > 0], [lane for lane in found if lane < 0]
        with vendor(using).transaction(connections[using]):
            taken = _with_locked_head(self._fronts(keys, max(1, limit // len(found))), using)
            for left, lane in zip(range(len(topics), 0, -1), topics, strict=True):
                taken.append(self._lock_due(lane, max(1, (limit - sum(map(len, taken))) // left)))
            ids, lapsed = _alone_if_lapsed(taken)
            if not ids:
                return None
            batch = Batch(uuid.uuid4().bytes, 0.0)
            rows = OutboxEvent.objects.using(using).filter(pk__in=sorted(ids))
            lease: dict[str, Any] = {"lock_token": batch.token, "due_at": UtcNowPlus(self._lease_seconds)}
            lease |= {"attempts": F("attempts") + 1} if lapsed else {}
            # Due, again: not every database kept these rows locked since they were read.
            if vendor(using).update_by_key(rows.filter(due_at__lte=UtcNow()), lease) != len(ids):
                raise _Overtaken
            batch.lanes = _read(rows)
        return batch

    def _fronts(self, found: Sequence[int], share: int) -> list[list[_Candidate]]:
        """Of each lane the first pending events up to one that is not to be taken now."""
        if not found:
            return []
        fronts: dict[int, list[_Candidate]] = defaultdict(list)
        ended = set()
        topics = None if self._topics is None else tuple(self._topics)
        since = {lane: self._floors.of(lane) or 1 for lane in found}
        rows = _front(self._using, share, topics).rows_of_each([{"lane": n, "since": since[n]} for n in found])
        seen: dict[int, list[int]] = defaultdict(list)
        for event_id, lane, takeable, token in sorted(rows, key=lambda row: row[0]):
            seen[lane].append(event_id)
            if not takeable:
                ended.add(lane)
            elif lane not in ended:
                fronts[lane].append(_Candidate(event_id, token is not None))
        for lane in found:
            self._floors.keep(lane, seen[lane][0] if len(seen[lane]) == share else None)
        return list(fronts.values())

    def _lock_due(self, lane: int, limit: int) -> list[_Candidate]:
        """Those of a topic that are due, from where the last look ended; from the first if that is not enough."""
        floor, rows = self._floors.of(lane), list[Any]()
        if floor is not None:
            rows = _due(lane, limit, self._using, since=floor)
        if len(rows) < limit:
            rows = _due(lane, limit, self._using)
        self._floors.keep(lane, rows[-1][2] if len(rows) == limit else None)
        return [_Candidate(event_id, token is not None) for event_id, token, _ in rows]


def _with_locked_head(fronts: list[list[_Candidate]], using: str) -> list[list[_Candidate]]:
    """Those fronts whose first event could be locked: whoever has that one, has the lane."""
    if not fronts:
        return []
    heads = sorted(front[0].event_id for front in fronts)
    rows = OutboxEvent.objects.using(using).filter(pk__in=heads, due_at__lte=UtcNow())
    locked = set(vendor(using).lock_rows(vendor(using).force_index(rows, "PRIMARY")).values_list("pk", flat=True))
    return [front for front in fronts if front[0].event_id in locked]


def _due(lane: int, limit: int, using: str, since: Any = None) -> list[tuple[int, Any, Any]]:
    due = OutboxEvent.objects.using(using).filter(lane=lane, due_at__lte=UtcNow()).order_by("due_at", "id")
    if since is not None:
        due = due.filter(due_at__gte=since)
    hinted = vendor(using).force_index(due, "ix_outbox_due")
    return list(vendor(using).lock_rows(hinted).values_list("pk", "lock_token", "due_at")[:limit])


def _alone_if_lapsed(taken: list[list[_Candidate]]) -> tuple[list[int], bool]:
    """The ids to lease. An event whose relay fell silent goes alone: if it kills relays, it takes no others along."""
    for lane in taken:
        if lane and lane[0].lapsed:
            return [lane[0].event_id], True
    sound = [list(takewhile(lambda candidate: not candidate.lapsed, lane)) for lane in taken]
    return [candidate.event_id for lane in sound for candidate in lane], False


@cache
def _front(using: str, share: int, topics: tuple[str, ...] | None) -> Prepared:
    columns = OutboxEvent._meta
    lane, since = Slot("lane", columns.get_field("lane")), Slot("since", columns.get_field("id"))
    rows = OutboxEvent.objects.using(using).filter(lane=lane, id__gte=since)
    if topics is not None:
        rows = rows.filter(topic__in=topics)
    takeable = ExpressionWrapper(Q(due_at__lte=UtcNow()), output_field=BooleanField())
    front: QuerySet[Any] = vendor(using).force_index(rows, "ix_outbox_lane").order_by("id")
    return prepare_rows(front.annotate(takeable=takeable).values_list("id", "lane", "takeable", "lock_token")[:share])


def _read(rows: QuerySet[OutboxEvent]) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = defaultdict(list)
    for row in rows.order_by("id"):
        event = Event(row.pk, row.topic, readable(row.key), row.payload, row.created_at, row.attempts + 1)
        found[row.lane or 0].append(event)
    return dict(found)
