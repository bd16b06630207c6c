"""Spans that the SDK's own in-memory exporter collects."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jobqueue.otel import JobQueueInstrumentor


class Spans:
    """The spans of this process that have ended, in the order of their ends."""

    def __init__(self):
        self._exporter, self.provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    def named(self, start):
        """Those whose name starts so."""
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(start)]

    def one(self, start):
        """The only one whose name starts so."""
        (span,) = self.named(start)
        return span


@pytest.fixture
def spans():
    """This process is traced."""
    found = Spans()
    JobQueueInstrumentor().instrument(tracer_provider=found.provider)
    yield found
    JobQueueInstrumentor().uninstrument()
    found.provider.shutdown()
