"""A queue of ours."""

from __future__ import annotations

from collections.abc import Sequence

from jobqueue.outbox.destinations.base import Destination, Outcome
from jobqueue.outbox.event import Event
from jobqueue.producer import enqueue_many


class Queue(Destination):
    """Adds a raw job per event, for the queue's @handler. Its payload has id, topic, key and payload of the event."""

    in_database = True

    def __init__(self, queue: str, using: str) -> None:
        self._queue, self._using = queue, using

    def send(self, events: Sequence[Event]) -> list[Outcome]:
        """In the caller's transaction; the event's id is the dedupe key."""
        payloads = [{**event.headers, "id": event.id, "payload": event.payload} for event in events]
        keys = [f"outbox-{event.id}" for event in events]
        enqueue_many(self._queue, payloads, dedupe_keys=keys, using=self._using)
        return [None] * len(events)
