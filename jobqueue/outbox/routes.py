"""Which destination a topic has, which destinations are down, and which waiting events have no destination.

An event with a key holds up all later events of its key, whatever their topics; one without a key only others of its
topic.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q, QuerySet

from jobqueue.backoff import Backoff
from jobqueue.base.validation import check_queue
from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import InvalidType, InvalidValue, WrongSettings
from jobqueue.failures import summary
from jobqueue.models import OutboxEvent
from jobqueue.outbox import statements
from jobqueue.outbox.destinations import Destination, Functions, Queue
from jobqueue.outbox.destinations.base import Event
from jobqueue.outbox.destinations.brokers import STREAM_SCHEMES, KafkaBroker, KombuBroker, RedisStream
from jobqueue.outbox.destinations.local import matches, subscribers_of
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


def find_unrouted(
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
    """Map each topic to its first event that relays try every minute; others may wait for a longer back-off.

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
            ids += waiting_after(lane, event_id - 1, using=using)
    return Unrouted(topic, ids, behind)


def waiting_after(lane: int, event_id: int, *, using: str) -> list[int]:
    """The ids of waiting events in `lane` behind an event; up to COUNT_MAX and one more."""
    rows = _waiting(using).filter(lane=lane, pk__gt=event_id).order_by("pk")
    return list(rows.values_list("pk", flat=True)[: COUNT_MAX + 1])


def _waiting(using: str) -> QuerySet[Any]:
    rows: QuerySet[Any] = vendor(using).force_index(OutboxEvent.objects.using(using), "ix_outbox_lane")
    return rows


logger = logging.getLogger("jobqueue.outbox")

SUBSCRIBERS = "subscribers"
#: waits after a destination could not be reached
DOWN_PAUSES = Backoff(base_seconds=0.5, cap_seconds=30.0)
#: failures in a row, when the pause ends, and why: of a destination that takes events
_UP = 0, 0.0, ""


class DownTracker:
    """Which destinations could not be reached, and until when they are left alone."""

    def __init__(self) -> None:
        self._down: dict[Destination, tuple[int, float, str]] = {}

    def pause_seconds(self, destination: Destination) -> float:
        """How long `destination` is still left alone; 0: it may be tried."""
        _, until, _ = self._down.get(destination, _UP)
        return max(0.0, until - time.monotonic())

    def reason(self, destination: Destination) -> str:
        """Why `destination` could not be reached; "" if it takes events."""
        return self._down.get(destination, _UP)[2]

    def note_down(self, destination: Destination, error: BaseException) -> float:
        """Record that `destination` could not be reached; the seconds until the next try, longer each time."""
        failures = self._down.get(destination, _UP)[0] + 1
        pause = DOWN_PAUSES.delay_seconds(failures)
        self._down[destination] = failures, time.monotonic() + pause, summary(error)
        level = logging.WARNING if failures == 1 else logging.DEBUG
        logger.log(level, "a destination cannot be reached (%s); its events wait, trying again in %.1f s", error, pause)
        return pause

    def note_up(self, destination: Destination) -> None:
        """Record that `destination` takes events."""
        if self._down.pop(destination, None):
            logger.warning("the destination answers again")


class Routes:
    """The destinations of one relay, made when a topic first needs them; topics with the same route share one."""

    def __init__(self, using: str, routes: Mapping[str, Any] | None = None) -> None:
        self.down = DownTracker()
        self._using = using
        self._routes: dict[str, Any] = dict(load().outbox_settings.routes if routes is None else routes)
        self._made: dict[str, Destination] = {}

    def prepare(self) -> None:
        """Make every destination that has a route, without connecting. Raises WrongSettings with all problems."""
        if problems := self.problems():
            raise WrongSettings(" ".join(map(str, problems)))

    def problems(self) -> list[WrongSettings]:
        """Make every destination that has a route, without connecting; returns why some cannot be made."""
        found = []
        for pattern, route in self._routes.items():
            if route == SUBSCRIBERS:
                continue
            try:
                self._made[pattern] = self._make(route)
            except (WrongSettings, InvalidValue, InvalidType) as error:
                kind = type(error) if isinstance(error, WrongSettings) else WrongSettings
                found.append(kind(f"JOBQUEUE['OUTBOX']['ROUTES'][{pattern!r}]: {error}"))
            except ValueError:
                # Of urllib, whose words may repeat the URL and so a password.
                found.append(WrongSettings(f"JOBQUEUE['OUTBOX']['ROUTES'][{pattern!r}] is not a URL that can be read."))
        return found

    def made(self) -> dict[str, Destination]:
        """The destinations that problems() and find() have made, by pattern; those of subscribers begin with theirs."""
        return dict(self._made)

    def find(self, topic: str) -> Destination | None:
        """The destination of `topic`; None if it has no route and no subscriber here."""
        pattern = max((p for p in self._routes if matches(p, topic)), key=lambda p: (p == topic, len(p)), default=None)
        route = SUBSCRIBERS if pattern is None else self._routes[pattern]
        name = f"{SUBSCRIBERS}:{topic}" if route == SUBSCRIBERS else str(pattern)
        if name not in self._made:
            found = subscribers_of(topic) if route == SUBSCRIBERS else []
            if route == SUBSCRIBERS and not found:
                return None
            self._made[name] = Functions(found, self._using) if found else self._make(route)
        return self._made[name]

    def unrouted(self, topics: Collection[str] | None = None, known: Iterable[Event] = ()) -> list[Unrouted]:
        """The waiting events of all topics, or of `topics`, that have no destination here, by topic.

        `known` are among them, however many keys have waiting events.
        """
        return find_unrouted(lambda topic: self.find(topic) is None, using=self._using, topics=topics, known=known)

    def close(self) -> None:
        for made in self._made.values():
            made.close()

    def _make(self, route: Any) -> Destination:
        url = route["URL"] if isinstance(route, Mapping) else route
        if url.startswith("queue:"):
            return Queue(check_queue(url.removeprefix("queue:")), self._using)
        options = route if isinstance(route, Mapping) else {}
        if url.startswith("kafka://"):
            return KafkaBroker(url, options)
        if url.partition("://")[0] in STREAM_SCHEMES:
            return RedisStream(url, options)
        return KombuBroker(url, options)
