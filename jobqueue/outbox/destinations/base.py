"""What a relay asks of a destination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from jobqueue.outbox.event import Event

#: of one event: None = it has arrived, else why not
Outcome: TypeAlias = BaseException | None


class Destination:
    """Takes events. Used by one thread."""

    #: several events can be sent at once; no two of one key are ever among them
    bulk = True
    #: its effects are in the outbox's database, so that they can be committed together with the mark "delivered"
    in_database = False

    def send(self, events: Sequence[Event]) -> list[Outcome]:
        """Deliver; one outcome per event, in their order. An event counts as arrived only if that is confirmed.

        DestinationDown, raised or as an outcome: it cannot be reached at present, no event is charged for it.
        """
        raise NotImplementedError

    def send_before(self, events: Sequence[Event]) -> list[Outcome]:
        """Of a destination in the database: what has to be done outside the transaction, and is done before it begins.

        Done again, as all of the delivery, when that transaction fails.
        """
        return [None] * len(events)

    def close(self) -> None:
        """End connections; the next send() makes new ones."""
