"""Event: what a relay passes to a destination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from jobqueue.payload import JSON


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
