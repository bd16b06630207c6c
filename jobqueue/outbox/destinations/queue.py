"""The destination queue:NAME: events become jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobqueue.conf import load
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import DestinationDown, QueueFull
from jobqueue.outbox.destinations.base import Destination, Outcome
from jobqueue.outbox.event import Event
from jobqueue.payload import MAX_DEPTH, encode
from jobqueue.producer.enqueueing import enqueue_many

WRAPPER_BYTES = 4096  # the most that id, topic and key add: 255 and 64 characters, escaped


class Queue(Destination):
    """Adds a raw job per event, for the queue's @handler. Its payload has id, topic, key and payload of the event."""

    in_database = True

    def __init__(self, queue: str, using: str) -> None:
        self._queue, self._using = queue, using

    def send(self, events: Sequence[Event]) -> list[Outcome]:
        """Enqueue in the caller's transaction, with id and time of the event as the dedupe key.

        A queue that is full, or drains, takes as many as it has room for, and counts as down for the others.
        """
        payloads = [_wrapped(event) for event in events]
        # With the time, because ids start again after TRUNCATE.
        keys = [f"outbox-{event.id}-{event.published_at:%Y%m%d%H%M%S%f}" for event in events]
        try:
            enqueue_many(self._queue, payloads, dedupe_keys=keys, using=self._using)
        except QueueFull:
            return self._send_while_there_is_room(payloads, keys)
        return [None] * len(events)

    def _send_while_there_is_room(self, payloads: Sequence[Encoded], keys: Sequence[str]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for payload, key in zip(payloads, keys, strict=True):
            try:
                enqueue_many(self._queue, [payload], dedupe_keys=[key], using=self._using)
            except QueueFull as error:
                # Those behind it too: one of them may have the same key.
                down = DestinationDown(str(error))
                return outcomes + [down] * (len(keys) - len(outcomes))
            outcomes.append(None)
        return outcomes


def _wrapped(event: Event) -> Encoded:
    """The payload of the job. Its limit is larger than that of publish(), so that the wrapper fits."""
    # The job has the trace of its enqueue.
    wrapped = {**replace(event, trace={}).headers, "id": event.id, "payload": event.payload}
    most = load().max_payload_bytes + WRAPPER_BYTES
    return Encoded(encode(wrapped, max_bytes=most, max_depth=MAX_DEPTH + 1))
