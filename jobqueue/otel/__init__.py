"""OpenTelemetry: a span for each enqueue, publish() and delivery, and one for each run, linked to that of its enqueue.

Imported by a project that traces, before or after the apps are ready. Runs in processes that enqueue and in workers;
opentelemetry-api (extra `otel`) is imported by instrument().
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobqueue import tracing
from jobqueue.exceptions import WrongSettings

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["JobQueueInstrumentor"]


class JobQueueInstrumentor:
    """Switches the tracing of this process on and off, as the instrumentors of OpenTelemetry's own packages do."""

    def instrument(self, *, tracer_provider: TracerProvider | None = None) -> None:
        """Trace from now on, also in processes that are forked. Another call replaces the provider.

        Default: the global tracer provider, also if it is set later. Raises WrongSettings without opentelemetry-api.
        """
        try:
            from jobqueue.otel.spans import Spans
        except ImportError as error:
            raise WrongSettings(
                "JobQueueInstrumentor needs opentelemetry-api, which is not installed. Nothing is traced; run: "
                "pip install opentelemetry-api"
            ) from error
        tracing.trace_with(Spans(tracer_provider))

    def uninstrument(self) -> None:
        """Trace nothing from now on. Spans that have begun end as usual."""
        tracing.trace_with(None)

    @property
    def is_instrumented(self) -> bool:
        """Whether this process is traced."""
        return tracing.current() is not None
