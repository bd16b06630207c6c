"""@subscriber registers functions that relays call with events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from jobqueue.compat import Task
from jobqueue.exceptions import InvalidType
from jobqueue.failures import dotted_path
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
