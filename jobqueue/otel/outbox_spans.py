"""The spans of the outbox: one for each publish(), and one for each delivery of events by a relay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opentelemetry.trace import Span, SpanKind, Tracer

from jobqueue.otel.guarded import Guarded, attributes, fail, headers_of

if TYPE_CHECKING:
    from jobqueue.outbox import Event


class PublishSpan(Guarded):
    """The span of publish(): it creates the event, which a relay sends later."""

    def __init__(self, tracer: Tracer, topic: str) -> None:
        super().__init__(tracer)
        self._topic = topic

    def note(self, event_id: int) -> None:
        """Record the id of the event, which its deliveries have too."""
        self._span.set_attribute("messaging.message.id", str(event_id))

    def _start(self) -> Span:
        found = attributes("publish", "create", self._topic)
        return self._tracer.start_span(f"publish {self._topic}", kind=SpanKind.PRODUCER, attributes=found)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            fail(self._span, error)


class DeliverySpan(Guarded):
    """The span of one call of a destination, usually for one event."""

    def __init__(self, tracer: Tracer, events: Sequence[Event], *, here: bool) -> None:
        super().__init__(tracer)
        self._events, self._here = events, here
        self._failed: BaseException | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """As headers_of()."""
        return headers_of(self._span)

    def note(self, outcomes: Sequence[BaseException | None]) -> None:
        """Record why the first event that did not arrive has not."""
        self._failed = next((outcome for outcome in outcomes if outcome is not None), None)

    def _start(self) -> Span:
        topics = {event.topic for event in self._events}
        topic = next(iter(topics)) if len(topics) == 1 else None
        found = attributes("deliver", "process" if self._here else "send", topic)
        if len(self._events) == 1:
            found["messaging.message.id"] = str(self._events[0].id)
            found["jobqueue.attempt"] = self._events[0].attempt
        else:
            found["messaging.batch.message_count"] = len(self._events)
        name = "deliver" if topic is None else f"deliver {topic}"
        kind = SpanKind.CONSUMER if self._here else SpanKind.PRODUCER
        return self._tracer.start_span(name, kind=kind, attributes=found)

    def _end(self, error: BaseException | None) -> None:
        if (failed := error or self._failed) is not None:
            fail(self._span, failed)
