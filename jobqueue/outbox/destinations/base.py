"""The interface of a destination."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from types import ModuleType
from typing import TypeAlias

from django.core.exceptions import ImproperlyConfigured

from jobqueue.outbox.event import Event

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
        """For a destination in the database: do what must be done outside the transaction, before it begins.

        It is repeated with the whole delivery when that transaction fails.
        """
        return [None] * len(events)

    def close(self) -> None:
        """Close connections; the next send() opens new ones."""


def library(name: str, options: Collection[str], known: Collection[str], install: str) -> ModuleType:
    """The module `name`, for a route with these options. Raises ImproperlyConfigured; the message says what to do."""
    routes = "JOBQUEUE['OUTBOX']['ROUTES']"
    if unknown := set(options) - set(known):
        raise ImproperlyConfigured(f"{routes}: unknown options {sorted(unknown)} of a broker through {name}")
    try:
        return import_module(name)
    except ImportError:
        raise ImproperlyConfigured(f"{routes} needs {name}, which is not installed. Run: {install}") from None
