"""The destination of topics without a route: the subscribers in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from asgiref.sync import async_to_sync, iscoroutinefunction

from jobqueue.db.user_code import close_left_open
from jobqueue.exceptions import DestinationDown
from jobqueue.outbox.destinations.base import Destination, Outcome
from jobqueue.outbox.event import Event
from jobqueue.outbox.subscribers import Subscriber
from jobqueue.tasks.nesting import delivering


class Functions(Destination):
    """Calls the subscribers of one topic; those with atomic=True last, in the transaction that marks the event."""

    bulk = False

    def __init__(self, subscribers: Sequence[Subscriber], using: str) -> None:
        self._using = using
        self._atomic = [found for found in subscribers if found.atomic]
        self._others = [found for found in subscribers if not found.atomic]
        self.in_database = bool(self._atomic)

    def send(self, events: Sequence[Event]) -> list[Outcome]:
        return [self._call(self._atomic or self._others, event) for event in events]

    def send_before(self, events: Sequence[Event]) -> list[Outcome]:
        """Call the subscribers without atomic=True, which must not run in the transaction."""
        return [self._call(self._others, event) for event in events]

    def _call(self, subscribers: Sequence[Subscriber], event: Event) -> Outcome:
        try:
            for found in subscribers:
                func = async_to_sync(found.func) if iscoroutinefunction(found.func) else found.func
                # What an atomic one enqueues is undone with its failure.
                again = nullcontext() if found.atomic else delivering(event.topic, event.attempt)
                with close_left_open(self._using), again:
                    func(event)
        except (DestinationDown, KeyboardInterrupt):
            raise
        except BaseException as error:
            # Whatever it raises, SystemExit included, or leaves open: the relay goes on with its other events.
            return error
        return None
