"""Which destination a topic has, by JOBQUEUE["OUTBOX"]["ROUTES"], and which destinations are down."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from jobqueue.backoff import Backoff
from jobqueue.conf import load
from jobqueue.exceptions import InvalidType, InvalidValue, WrongSettings
from jobqueue.failures import summary
from jobqueue.outbox import unrouted
from jobqueue.outbox.destinations import Destination, Functions, Queue
from jobqueue.outbox.destinations.brokers import STREAM_SCHEMES, KafkaBroker, KombuBroker, RedisStream
from jobqueue.outbox.destinations.local import matches, subscribers_of
from jobqueue.outbox.event import Event
from jobqueue.outbox.unrouted import Unrouted
from jobqueue.validation import check_queue

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
        return unrouted.find(lambda topic: self.find(topic) is None, using=self._using, topics=topics, known=known)

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
