"""The subscribers in this process."""

from __future__ import annotations

from collections.abc import Sequence

from asgiref.sync import async_to_sync, iscoroutinefunction

from jobqueue.exceptions import DestinationDown
from jobqueue.outbox.destinations.base import Destination, Outcome
from jobqueue.outbox.event import Event
from jobqueue.outbox.subscribers import Subscriber


class Functions(Destination):
    """Calls every subscriber of one topic."""

    bulk = False

    def __init__(self, subscribers: Sequence[Subscriber]) -> None:
        self._subscribers = subscribers
        self.in_database = all(found.atomic for found in subscribers)

    def send(self, events: Sequence[Event]) -> list[Outcome]:
        """One after the other."""
        return [self._call(event) for event in events]

    def _call(self, event: Event) -> Outcome:
        try:
            for found in self._subscribers:
                func = async_to_sync(found.func) if iscoroutinefunction(found.func) else found.func
                func(event)
        except (DestinationDown, KeyboardInterrupt):
            raise
        except BaseException as error:
            # Whatever it raises, SystemExit too: the relay and its other events go on.
            return error
        return None
