"""What a relay passes to a destination, and the interface of a destination."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from types import ModuleType
from typing import TypeAlias

from jobqueue.base.payload import JSON
from jobqueue.base.validation import did_you_mean
from jobqueue.exceptions import WrongSettings


@dataclass(frozen=True, slots=True)
class Event:
    """An event. It is delivered at least once: a repeat has the same id.

    `id` is the message id at every destination. Within a key ids grow in commit order, so a consumer that has seen a
    higher id of the same key can drop a lower one. `key` is bytes if it is not UTF-8. `attempt` counts from 1.
    """

    id: int
    topic: str
    key: str | bytes | None
    payload: JSON
    published_at: datetime
    attempt: int
    #: traceparent, and tracestate if there is one, of the span of this delivery; empty if the relay is not traced
    trace: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Message headers: message-id, topic, sequence, published-at, attempt, key if it has one, and `trace`."""
        found = {
            **self.trace,
            "message-id": str(self.id),
            "topic": self.topic,
            "sequence": str(self.id),
            "published-at": self.published_at.isoformat(),
            "attempt": str(self.attempt),
        }
        if self.key is not None:
            found["key"] = self.key if isinstance(self.key, str) else self.key.hex()
        return found

    @property
    def key_bytes(self) -> bytes | None:
        return self.key.encode() if isinstance(self.key, str) else self.key


def readable(key: bytes | None) -> str | bytes | None:
    """The key as text; as bytes if it is not UTF-8."""
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return key


#: the outcome of one event: None if it has arrived, else the reason
Outcome: TypeAlias = BaseException | None


class Destination:
    """Delivers events. Used by one thread."""

    #: whether send() takes several events at once; no two of them have the same key
    bulk = True
    #: whether its effects are in the outbox's database and can be committed together with the mark "delivered"
    in_database = False

    def send(self, events: Sequence[Event]) -> list[Outcome]:
        """Deliver the events; one outcome per event, in their order. Only a confirmed event has arrived.

        DestinationDown, raised or as an outcome: the destination cannot be reached, and no event is charged for that.
        """
        raise NotImplementedError

    def send_before(self, events: Sequence[Event]) -> list[Outcome]:
        """Do what a destination in the database must do outside the transaction, before it begins.

        It is repeated with the whole delivery when that transaction fails.
        """
        return [None] * len(events)

    def ping(self, seconds: float) -> None:
        """Ask the broker for an answer, and send nothing. Raises any error if there is none within about `seconds`.

        A destination that has no broker does nothing.
        """

    def close(self) -> None:
        """Close connections; the next send() opens new ones."""


class NotInstalled(WrongSettings):
    """The package of a broker is not installed here; relays elsewhere may have it."""


def library(name: str, options: Collection[str], known: Collection[str], install: str) -> ModuleType:
    """The module `name`, for a route with these options. Raises WrongSettings; the message says what to do."""
    for option in options:
        if option not in known:
            raise WrongSettings(
                f"unknown option {option!r}{did_you_mean(option, known)}. A broker through {name} takes "
                f"{', '.join(sorted(known))}."
            )
    try:
        return import_module(name)
    except ImportError:
        raise NotInstalled(f"it needs {name}, which is not installed. Run: {install}") from None
