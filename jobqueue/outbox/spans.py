"""The spans of publish() and of deliveries; in a process that is not traced they are nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from jobqueue import tracing
from jobqueue.outbox.destinations import Destination, Outcome
from jobqueue.outbox.destinations.subscribers import Functions
from jobqueue.outbox.event import Event


class Untraced:
    """Stands for a span that nobody wants."""

    __slots__ = ("events",)

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self.events = events

    def __enter__(self) -> Untraced:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, found: Any) -> None:
        """Nothing."""


class TracedDelivery(Untraced):
    """The span of a delivery, and its events with headers by which their receivers find it."""

    __slots__ = ("_span",)

    def __init__(self, events: Sequence[Event], span: tracing.DeliverySpan) -> None:
        headers = span.headers
        super().__init__([replace(event, trace=headers) for event in events] if headers else events)
        self._span = span

    def note(self, found: Sequence[Outcome]) -> None:
        """Record the outcomes of the delivery."""
        self._span.note(found)


_UNTRACED = Untraced()


def publishing(topic: str) -> AbstractContextManager[tracing.PublishSpan]:
    """A `with` block that is the span of publish()."""
    tracer = tracing.current()
    return _UNTRACED if tracer is None else tracer.publishing(topic)


def delivering(destination: Destination, events: Sequence[Event]) -> AbstractContextManager[Untraced]:
    """A `with` block that is the span of a delivery; give the destination the events that it gives."""
    tracer = tracing.current()
    return Untraced(events) if tracer is None else _delivering(tracer, destination, events)


@contextmanager
def _delivering(tracer: tracing.Tracer, destination: Destination, events: Sequence[Event]) -> Iterator[Untraced]:
    with tracer.delivering(events, here=isinstance(destination, Functions)) as span:
        yield TracedDelivery(events, span)
