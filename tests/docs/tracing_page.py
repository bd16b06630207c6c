"""What docs/howto/tracing.md says of spans, compared with those that are sent while its blocks run."""

from __future__ import annotations

import sys
import types
from typing import Any

from django.db import transaction
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jobqueue.otel import JobQueueInstrumentor
from jobqueue.outbox import publish, subscriber
from jobqueue.outbox.destinations import local
from jobqueue.signals import worker_started
from tests.docs.markdown import ROOT
from tests.outbox.helpers import drain

_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


class Traced:
    """Stands in for the exporter that the page imports, from its creation to end()."""

    def __init__(self) -> None:
        self.sent = InMemorySpanExporter()
        stub: Any = types.ModuleType(_EXPORTER)
        stub.OTLPSpanExporter = lambda: self.sent
        parts = [_EXPORTER, *(_EXPORTER.rsplit(".", number)[0] for number in (1, 2, 3, 4))]
        self.kept = {part: sys.modules.get(part) for part in parts}
        for part in self.kept:
            sys.modules.setdefault(part, types.ModuleType(part))
        sys.modules[_EXPORTER] = stub

    def send_an_event(self) -> None:
        """Publish an event and deliver it to a subscriber."""
        others, local._subscribers = local._subscribers, {}
        subscriber("order.paid")(print)
        with transaction.atomic():
            publish("order.paid", 42)
        drain()
        local._subscribers = others

    def check(self) -> None:
        """The page lists the spans and attributes of one job and one event."""
        trace.get_tracer_provider().force_flush()
        enqueued, ran, published, delivered = self.sent.get_finished_spans()
        assert (enqueued.name, ran.name) == ("enqueue mail", "process mail")
        assert (published.name, delivered.name) == ("publish order.paid", "deliver order.paid")
        assert ran.links[0].context.span_id == enqueued.context.span_id
        assert ran.resource.attributes["service.name"] == "shop"
        text = (ROOT / "docs" / "howto" / "tracing.md").read_text()
        for span in (enqueued, ran, published, delivered):
            assert f"| `{span.name}` | {span.kind.name}" in text, span.name
            for name in span.attributes:
                assert f"`{name}`" in text, name

    def end(self, receiver: Any) -> None:
        """Undo what the page has set up; `receiver` is what it has connected."""
        JobQueueInstrumentor().uninstrument()
        worker_started.disconnect(receiver)
        trace.get_tracer_provider().shutdown()
        for part, module in self.kept.items():
            if module is None:
                sys.modules.pop(part)
            else:
                sys.modules[part] = module
