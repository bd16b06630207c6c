"""Destinations in the database of the outbox: functions of the project, called for each event, and queues of jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction

from jobqueue.base.compat import Task
from jobqueue.base.payload import MAX_DEPTH, encode
from jobqueue.base.validation import check_topic
from jobqueue.conf import load
from jobqueue.context.guards import close_left_open
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import DestinationDown, InvalidType, QueueFull
from jobqueue.failures import dotted_path
from jobqueue.outbox.destinations.base import Destination, Event, Outcome
from jobqueue.producer.enqueueing import enqueue_many
from jobqueue.tasks.nesting import delivering

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A registered function and its topics."""

    pattern: str
    func: Callable[..., Any]
    atomic: bool

    @property
    def name(self) -> str:
        return dotted_path(self.func)


_adding = threading.Lock()
_subscribers: dict[tuple[str, str], Subscriber] = {}


def subscriber(topic: str, *, atomic: bool = False) -> Callable[[F], F]:
    """Call the decorated function with each Event of `topic`, or of all topics that begin with "order." for "order.*".

    A relay calls it at least once per event, and for events of one key in order. If it raises, the delivery has failed
    and is repeated. Put it into <app>/tasks.py. With atomic=True it runs in the transaction that marks the event as
    delivered, on the outbox's database: its writes there happen exactly once, and it must be as short as a transaction
    should be. Several subscribers of a topic are called in order of registration, those with atomic=True after the
    others; when one fails, all are called again.
    """
    if topic != "*":
        check_topic(topic.removesuffix("*") if isinstance(topic, str) else topic)

    def register(func: F) -> F:
        if not callable(func) or isinstance(func, Task):
            raise InvalidType(f"@subscriber({topic!r}) decorates a function, got {type(func).__name__}.")
        found = Subscriber(topic, func, atomic)
        with _adding:
            # By name: a module that is imported again replaces its functions.
            _subscribers[topic, found.name] = found
        return func

    return register


def subscribers_of(topic: str) -> list[Subscriber]:
    """The subscribers of a topic, in order of registration."""
    return [found for found in list(_subscribers.values()) if matches(found.pattern, topic)]


def matches(pattern: str, topic: str) -> bool:
    """Return whether `topic` equals `pattern`, or begins with the part before its final *."""
    return topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern


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
