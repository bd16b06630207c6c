"""What a destination gets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobqueue.payload import JSON


@dataclass(frozen=True, slots=True)
class Event:
    """One event on its way. It may come again with the same id: at least once.

    `id` is the message id at every destination. Within a key ids only grow, in commit order, so a consumer that has
    seen a higher id of the same key can drop a lower one. `key` is bytes if it is not UTF-8. `attempt` counts from 1.
    """

    id: int
    topic: str
    key: str | bytes | None
    payload: JSON
    published_at: datetime
    attempt: int

    @property
    def headers(self) -> dict[str, str]:
        """For message headers: message-id, topic, sequence, published-at, attempt, and key where there is one."""
        found = {
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
        """The key as it is stored."""
        return self.key.encode() if isinstance(self.key, str) else self.key


def readable(key: bytes | None) -> str | bytes | None:
    """Text where it is text."""
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return key
