"""What a messenger can do."""

from __future__ import annotations

from typing import Protocol

#: the channel of all rings; the text is the queue's name
CHANNEL = "jobqueue"


class Ear(Protocol):
    """A connection that listens, for one thread. Every method may raise what its driver raises."""

    def heard(self, seconds: float) -> list[str]:
        """The names of the queues that were rung for since the last call; waits up to `seconds` for one."""

    def check(self) -> None:
        """Ask the other side for a sign of life."""

    def close(self) -> None:
        """Give the connection up."""


class Bell(Protocol):
    """One way of reaching workers in other processes."""

    def ring(self, queue: str) -> None:
        """Send the queue's name to everybody who listens. Never raises, and does not wait long."""

    def listen(self) -> Ear:
        """A new connection that listens. Raises NotSupported where that cannot be, ever."""
