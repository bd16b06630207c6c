"""OpenTelemetry: a span for each enqueue, publish() and delivery, and one for each run, linked to that of its enqueue.

The spans follow the semantic conventions for messaging and hold no values of jobs. An error of a span processor or of
an exporter is logged and reaches no enqueue and no job. instrument() imports opentelemetry-api (extra `otel`). A
process that is not traced imports nothing and looks at one variable.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobqueue.exceptions import WrongSettings
from jobqueue.failures import dotted_path
from jobqueue.masking import mask_text

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, Tracer, TracerProvider

__all__ = ["JobQueueInstrumentor"]

logger = logging.getLogger("jobqueue.otel")

#: the innermost frames of a traceback that an event keeps
FRAMES_MAX = 30
#: how long the end of a process may wait until its last spans are sent
FLUSH_SECONDS = 3.0
#: endings of a run that are errors; after "finished" the job is done whatever it raised
_ERRORS = ("failed", "given up")
# Through the base class: a subclass may have a property of this name, which raises.
_TRACEBACK = BaseException.__dict__["__traceback__"]

_tracer: Tracer | None = None
_provider: TracerProvider | None = None


class JobQueueInstrumentor:
    """Switches the tracing of this process on and off, as the instrumentors of OpenTelemetry's own packages do."""

    def instrument(self, *, tracer_provider: TracerProvider | None = None) -> None:
        """Trace from now on, also in processes that are forked. Another call replaces the provider.

        Default: the global tracer provider, also if it is set later. Raises WrongSettings without opentelemetry-api.
        """
        global _tracer, _provider
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise WrongSettings(
                "JobQueueInstrumentor needs opentelemetry-api, which is not installed. Nothing is traced; run: "
                "pip install opentelemetry-api"
            ) from error
        # Not imported: the first names that the package gives import this room.
        version: str = sys.modules["jobqueue"].__version__
        _tracer, _provider = trace.get_tracer("jobqueue", version, tracer_provider), tracer_provider

    def uninstrument(self) -> None:
        """Trace nothing from now on. Spans that have begun end as usual."""
        global _tracer
        _tracer = None

    @property
    def is_instrumented(self) -> bool:
        """True if this process is traced."""
        return _tracer is not None


class Traced:
    """A `with` block that is a span. Errors of the span are logged, and the block runs without it.

    Without a tracer there is no span, and nothing here does anything.
    """

    def __init__(
        self,
        tracer: Tracer | None,
        verb: str = "",
        operation: str = "",
        destination: str | None = None,
        more: Mapping[str, str | int] | None = None,
    ) -> None:
        self._tracer, self._verb, self._operation, self._destination = tracer, verb, operation, destination
        self._more = more or {}
        self._span: Span | None = None
        self._token: Any = None
        self._failed: BaseException | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Traced:
        if self._tracer is None:
            return self
        from opentelemetry import context, trace

        attributes: dict[str, str | int] = {
            "messaging.system": "jobqueue",
            "messaging.operation.name": self._verb,
            "messaging.operation.type": self._operation,
        }
        if self._destination is not None:
            attributes["messaging.destination.name"] = self._destination
        name = self._verb if self._destination is None else f"{self._verb} {self._destination}"
        kind = trace.SpanKind.CONSUMER if self._operation == "process" else trace.SpanKind.PRODUCER
        try:
            links = self._links()
            span = self._tracer.start_span(name, kind=kind, attributes=attributes | dict(self._more), links=links)
            self._token, self._span = context.attach(trace.set_span_in_context(span)), span
        except Exception:
            logger.exception("could not start a span; continuing without it")
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if self._span is None:
            return
        from opentelemetry import context

        try:
            context.detach(self._token)
            # A process that the job has forked comes here too; the span is its parent's.
            if os.getpid() != self._pid:
                return
            if self._span.is_recording():
                self._end(self._span, self._failed if error is None else error)
            self._span.end()
        except Exception:
            logger.exception("could not end a span")

    @property
    def headers(self) -> dict[str, str]:
        """traceparent, and tracestate if there is one, by which others link to this span.

        Empty if the span is not sampled: a link to it would lead nowhere.
        """
        found: dict[str, str] = {}
        if self._span is not None and self._span.get_span_context().trace_flags.sampled:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            TraceContextTextMapPropagator().inject(found, trace.set_span_in_context(self._span))
        return found

    def wrote(self, ids: Sequence[int], added: int) -> None:
        """Record the id of the job or the event if it is alone, and how many were added if some keys were held."""
        if self._span is None:
            return
        if len(ids) == 1:
            self._span.set_attribute("messaging.message.id", str(ids[0]))
        if added < len(ids):
            self._span.set_attribute("jobqueue.added", added)

    def delivered(self, outcomes: Sequence[BaseException | None]) -> None:
        """Record why the first event that did not arrive has not; an outcome is None for each that has."""
        if self._span is not None:
            self._failed = next((outcome for outcome in outcomes if outcome is not None), None)

    def _links(self) -> Sequence[Link]:
        return ()

    def _end(self, span: Span, error: BaseException | None) -> None:
        if error is not None:
            _fail(span, error)


class TracedRun(Traced):
    """The span of one call, usually of one job."""

    def __init__(self, tracer: Tracer, attempts: Sequence[Any]) -> None:
        self._attempts = attempts
        self._leases = [attempt.lease for attempt in attempts]
        first = self._leases[0]
        more: dict[str, str | int] = {"messaging.client.id": first.worker}
        if first.task is not None:
            more["jobqueue.task"] = first.task
        if len(attempts) == 1:
            more["messaging.message.id"] = str(first.job_id)
            more["jobqueue.attempt"] = first.attempt
            more["jobqueue.max_attempts"] = first.max_attempts
        else:
            more["messaging.batch.message_count"] = len(attempts)
        super().__init__(tracer, "process", "process", first.queue, more)

    def _links(self) -> list[Link]:
        return [link for lease in self._leases if (link := _link(lease.options, lease.job_id)) is not None]

    def _end(self, span: Span, error: BaseException | None) -> None:
        endings = [str(attempt.ended_as()) for attempt in self._attempts]
        if len(endings) == 1:
            span.set_attribute("jobqueue.outcome", endings[0])
        told: set[int] = set()
        for attempt, ending in zip(self._attempts, endings, strict=True):
            # One error may be that of all jobs of a call.
            if attempt.error is None or id(attempt.error) in told or ending not in (*_ERRORS, "finished"):
                continue
            told.add(id(attempt.error))
            (_fail if ending in _ERRORS else _tell)(span, attempt.error)


UNTRACED = Traced(None)


def enqueueing(jobs: Sequence[Any]) -> Traced:
    """The span of the INSERT of these jobs (NewJob), which are to have its `headers` in their options."""
    if _tracer is None or not jobs:
        return UNTRACED
    queues, tasks = {job.queue for job in jobs}, {job.task for job in jobs if job.task is not None}
    more: dict[str, str | int] = {"jobqueue.task": tasks.pop()} if len(tasks) == 1 else {}
    if len(jobs) > 1:
        more["messaging.batch.message_count"] = len(jobs)
    return Traced(_tracer, "enqueue", "send", queues.pop() if len(queues) == 1 else None, more)


def running(attempts: Sequence[Any]) -> Traced:
    """The span of one call of these attempts (worker.run.attempt.Attempt), linked to the enqueue of each job."""
    return UNTRACED if _tracer is None else TracedRun(_tracer, attempts)


def publishing(topic: str) -> Traced:
    """The span of publish(), which creates the event that a relay sends later."""
    return UNTRACED if _tracer is None else Traced(_tracer, "publish", "create", topic)


def delivering(events: Sequence[Any], *, here: bool) -> Traced:
    """The span of one call of a destination with these events (outbox.Event); `here`: of subscribers."""
    if _tracer is None:
        return UNTRACED
    topics = {event.topic for event in events}
    more: dict[str, str | int] = {"messaging.batch.message_count": len(events)}
    if len(events) == 1:
        more = {"messaging.message.id": str(events[0].id), "jobqueue.attempt": events[0].attempt}
    return Traced(_tracer, "deliver", "process" if here else "send", topics.pop() if len(topics) == 1 else None, more)


def flush() -> None:
    """Have the provider send what has ended, for at most FLUSH_SECONDS: this process is about to end."""
    if _tracer is None:
        return
    from opentelemetry import trace

    provider: Any = _provider or trace.get_tracer_provider()
    if (force_flush := getattr(provider, "force_flush", None)) is None:
        return
    # In a thread: exporters retry for as long as they like.
    thread = threading.Thread(target=force_flush, args=[int(FLUSH_SECONDS * 1000)], name="spans", daemon=True)
    thread.start()
    thread.join(FLUSH_SECONDS)


def _link(options: object, job_id: int) -> Link | None:
    """A link to the span that a job's options name; None if they name none, as plain SQL may write anything."""
    if not isinstance(options, dict):
        return None
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers = {name: options[name] for name in ("traceparent", "tracestate") if isinstance(options.get(name), str)}
    around = TraceContextTextMapPropagator().extract(headers, context.Context())
    found = trace.get_current_span(around).get_span_context()
    return trace.Link(found, {"messaging.message.id": str(job_id)}) if found.is_valid else None


def _fail(span: Span, error: BaseException) -> None:
    """Give the span the status ERROR, and the event of its error."""
    from opentelemetry import trace

    name = dotted_path(type(error))
    span.set_status(trace.Status(trace.StatusCode.ERROR, name))
    span.set_attribute("error.type", name)
    _tell(span, error)


def _tell(span: Span, error: BaseException) -> None:
    """Add the event of an error without its message, which may hold a payload or a secret.

    The frames show lines of code, which may hold a password, too.
    """
    frames = traceback.format_tb(_TRACEBACK.__get__(error), limit=-FRAMES_MAX)
    attributes = {"exception.type": dotted_path(type(error)), "exception.stacktrace": mask_text("".join(frames))}
    span.add_event("exception", attributes)
