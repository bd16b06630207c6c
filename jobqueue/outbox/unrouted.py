"""Events for which there is no route and no subscriber, and the events that wait behind them.

An event with a key holds up all later events of its key, whatever their topics; one without a key only others of its
topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q, QuerySet

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.models import OutboxEvent
from jobqueue.outbox import statements
from jobqueue.outbox.event import Event
from jobqueue.outbox.statements import NO_DESTINATION

#: waiting events that are counted, and ids that are named: the cost must not grow with the backlog
COUNT_MAX, IDS_MAX = 1000, 5
#: first events of a topic among which next_ids() looks
NEXT_MAX = 20


@dataclass(slots=True)
class Unrouted:
    """The first waiting events of one topic that relays cannot deliver."""

    topic: str
    ids: list[int] = field(default_factory=list)
    #: later events that wait for these, because they have the same keys
    behind: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        one = len(self.ids) == 1
        text = f"{self.topic!r}: {count_of(self.ids)} {'waits' if one else 'wait'} ({ids_of(self.ids)})"
        if not self.behind:
            return text
        whose = "its key behind it" if one else "their keys behind them"
        later = count_of(self.behind).replace(" ", " later ", 1)
        return f"{text}, and {later} of {whose} ({ids_of(self.behind)})"


def count_of(ids: Sequence[int]) -> str:
    """Such as "2 events"."""
    number = f"{COUNT_MAX}+" if len(ids) > COUNT_MAX else str(len(ids))
    return f"{number} event{'' if len(ids) == 1 else 's'}"


def ids_of(ids: Sequence[int]) -> str:
    """The first IDS_MAX of them, as "#7, #9"."""
    return ", ".join(f"#{event_id}" for event_id in sorted(ids)[:IDS_MAX]) + (", ..." if len(ids) > IDS_MAX else "")


def find(
    lacks: Callable[[str], bool] | None = None,
    *,
    using: str,
    topics: Collection[str] | None = None,
    limit: int = statements.WINDOW,
    known: Iterable[Event] = (),
) -> list[Unrouted]:
    """The topics without a destination among the first events of up to `limit` lanes, with the events that wait.

    `lacks(topic)` says whether a topic has none in this process; without it, the last relay that had the event decides.
    `known`: first events of lanes, which may be others than those that are read.
    The cost: one index seek per lane, and up to COUNT_MAX index entries per topic.
    """
    begins = NO_DESTINATION if lacks is None else None
    heads = statements.head_events(using=using, limit=limit, last_error_begins=begins)
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for event_id, topic, lane in [*heads, *((event.id, event.topic, statements.lane_of(event)) for event in known)]:
        if (topics is None or topic in topics) and (lacks is None or lacks(topic)):
            found[topic][lane] = min(event_id, found[topic].get(lane, event_id))
    read = [
        _of_topic(topic, sorted((first, lane) for lane, first in found[topic].items()), using)
        for topic in sorted(found)
    ]
    # Meanwhile somebody may have taken all events of a topic.
    return [each for each in read if each.ids]


def next_ids(found: Iterable[Unrouted], *, using: str) -> dict[str, int]:
    """By topic, the first of these events that relays try again every minute; others may wait for a longer back-off.

    All relays find the same one, so that one of them can speak for all. One read by the primary key.
    """
    first = {event_id: each.topic for each in found for event_id in sorted(each.ids)[:NEXT_MAX]}
    tried = Q(due_at__lte=UtcNow()) | Q(lock_token__isnull=False) | Q(last_error__startswith=NO_DESTINATION)
    rows = OutboxEvent.objects.using(using).filter(tried, pk__in=first).values_list("pk", flat=True)
    return {first[event_id]: event_id for event_id in sorted(rows, reverse=True)}


def _of_topic(topic: str, heads: Sequence[tuple[int, int]], using: str) -> Unrouted:
    ids = [event_id for event_id, lane in heads if lane > 0]
    keys = [lane for _, lane in heads if lane > 0]
    # The heads are left out here: a list of ids in the statement would be multiplied with that of the statements.
    waiting = _waiting(using).filter(lane__in=keys).values_list("pk", flat=True)
    heads_read = set(ids)
    behind = [number for number in waiting[: COUNT_MAX + 1 + len(ids)] if number not in heads_read] if keys else []
    behind = behind[: COUNT_MAX + 1]
    for event_id, lane in heads:
        if lane < 0:
            # The others of the topic without a key wait for the same reason.
            ids += after(lane, event_id - 1, using=using)
    return Unrouted(topic, ids, behind)


def after(lane: int, event_id: int, *, using: str) -> list[int]:
    """The ids of waiting events in `lane` behind an event; up to COUNT_MAX and one more."""
    rows = _waiting(using).filter(lane=lane, pk__gt=event_id).order_by("pk")
    return list(rows.values_list("pk", flat=True)[: COUNT_MAX + 1])


def _waiting(using: str) -> QuerySet[Any]:
    rows: QuerySet[Any] = vendor(using).force_index(OutboxEvent.objects.using(using), "ix_outbox_lane")
    return rows
