"""The destination "subscribers": functions of this code base that are called for each event of a topic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction

from jobqueue.compat import Task
from jobqueue.db.user_code import close_left_open
from jobqueue.exceptions import DestinationDown, InvalidType
from jobqueue.failures import dotted_path
from jobqueue.outbox.destinations.base import Destination, Outcome
from jobqueue.outbox.event import Event
from jobqueue.tasks.nesting import delivering
from jobqueue.validation import check_topic

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
    """Whether `topic` equals `pattern`, or begins with the part before its final *."""
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
