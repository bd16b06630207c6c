"""The interface of a destination."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from types import ModuleType
from typing import TypeAlias

from jobqueue.exceptions import WrongSettings
from jobqueue.outbox.event import Event
from jobqueue.validation import did_you_mean

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
