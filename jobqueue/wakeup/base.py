"""The interface of a notifier."""

from __future__ import annotations

from typing import Protocol

#: the channel of all wake-ups; the text of a message is the queue's name
CHANNEL = "jobqueue"


class Subscription(Protocol):
    """A connection that receives wake-ups, for one thread. Every method may raise what its driver raises."""

    def receive(self, seconds: float) -> list[str]:
        """The queues named by the messages since the last call; waits up to `seconds` for the first one."""

    def check(self) -> None:
        """Send a request, so that a connection that is no longer alive raises here or in receive()."""

    def close(self) -> None:
        """Close the connection."""


class Notifier(Protocol):
    """Sends wake-ups to workers in other processes."""

    def notify(self, queue: str) -> None:
        """Send the queue's name to every subscriber. Never raises, and returns within a fraction of a second."""

    def subscribe(self) -> Subscription:
        """Open a new connection that receives. Raises NotSupported where this can never work."""
