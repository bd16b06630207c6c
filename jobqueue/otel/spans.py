"""The spans, by the semantic conventions of OpenTelemetry for messaging, without values of jobs in them.

An error of a span processor, or of an exporter, is logged and reaches no enqueue and no job.
"""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobqueue.failures import dotted_path

if TYPE_CHECKING:
    from jobqueue.worker.run.attempt import Attempt

logger = logging.getLogger("jobqueue.otel")

#: how long the end of a process may wait until its last spans are sent
FLUSH_SECONDS = 3.0
#: the innermost frames of a traceback that an event keeps
FRAMES_MAX = 30
_W3C = TraceContextTextMapPropagator()
# Through the base class: a subclass may have a property of this name, which raises.
_TRACEBACK = BaseException.__dict__["__traceback__"]
#: endings of a run that are errors; after "finished" the job is done whatever it raised
_ERRORS = ("failed", "given up")


class Spans:
    """A jobqueue.tracing.Tracer: makes spans with a provider, or with the global one."""

    def __init__(self, provider: TracerProvider | None) -> None:
        from jobqueue import __version__

        self._provider = provider
        self._tracer = trace.get_tracer("jobqueue", __version__, provider)

    def enqueueing(self, queues: Collection[str], tasks: Collection[str], *, count: int) -> EnqueueSpan:
        """The PRODUCER span of an enqueue. Jobs of several queues or tasks: those attributes are left out."""
        return EnqueueSpan(self._tracer, queues, tasks, count)

    def running(self, attempts: Sequence[Attempt]) -> RunSpan:
        """The CONSUMER span of a call, linked to the enqueue of each of its jobs."""
        return RunSpan(self._tracer, attempts)

    def flush(self) -> None:
        """Have the provider send what has ended, for at most FLUSH_SECONDS."""
        provider: Any = self._provider or trace.get_tracer_provider()
        if (force_flush := getattr(provider, "force_flush", None)) is None:
            return
        # In a thread: exporters retry for as long as they like.
        thread = threading.Thread(target=force_flush, args=[int(FLUSH_SECONDS * 1000)], name="spans", daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)


class _Guarded:
    """A span that is current in its `with` block; what it raises is logged."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer, self._pid = tracer, os.getpid()
        self._span: Span = trace.INVALID_SPAN
        self._token: Any = None

    def _start(self) -> Span:
        raise NotImplementedError

    def _end(self, error: BaseException | None) -> None:
        raise NotImplementedError

    def __enter__(self) -> Any:
        try:
            self._span = self._start()
            self._token = context.attach(trace.set_span_in_context(self._span))
        except Exception:
            logger.exception("a span could not be begun; the work goes on without it")
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if self._token is None:
            return
        try:
            context.detach(self._token)
            # A process that the job has forked comes here too; the span is its parent's.
            if os.getpid() != self._pid:
                return
            if self._span.is_recording():
                self._end(error)
            self._span.end()
        except Exception:
            logger.exception("a span could not be ended")


class EnqueueSpan(_Guarded):
    """The span of an enqueue."""

    def __init__(self, tracer: Tracer, queues: Collection[str], tasks: Collection[str], count: int) -> None:
        super().__init__(tracer)
        self._queues, self._tasks, self._count = queues, tasks, count

    @property
    def headers(self) -> Mapping[str, str]:
        """traceparent, and tracestate if there is one, of a span that is sampled: a link to another leads nowhere."""
        found: dict[str, str] = {}
        if self._span.get_span_context().trace_flags.sampled:
            _W3C.inject(found, trace.set_span_in_context(self._span))
        return found

    def note(self, ids: Sequence[int], *, added: int) -> None:
        """Record the id of a job that is alone, and how many were added if some keys were held."""
        if len(ids) == 1:
            self._span.set_attribute("messaging.message.id", str(ids[0]))
        if added < self._count:
            self._span.set_attribute("jobqueue.added", added)

    def _start(self) -> Span:
        queue = next(iter(self._queues)) if len(self._queues) == 1 else None
        attributes = _attributes("enqueue", "send", queue)
        if len(self._tasks) == 1:
            attributes["jobqueue.task"] = next(iter(self._tasks))
        if self._count > 1:
            attributes["messaging.batch.message_count"] = self._count
        name = "enqueue" if queue is None else f"enqueue {queue}"
        return self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            _fail(self._span, error)


class RunSpan(_Guarded):
    """The span of one call, usually of one job."""

    def __init__(self, tracer: Tracer, attempts: Sequence[Attempt]) -> None:
        super().__init__(tracer)
        self._attempts = attempts

    def _start(self) -> Span:
        leases = [attempt.lease for attempt in self._attempts]
        first = leases[0]
        attributes = _attributes("process", "process", first.queue) | {"messaging.client.id": first.worker}
        if first.task is not None:
            attributes["jobqueue.task"] = first.task
        if len(leases) == 1:
            attributes["messaging.message.id"] = str(first.job_id)
            attributes["jobqueue.attempt"] = first.attempt
            attributes["jobqueue.max_attempts"] = first.max_attempts
        else:
            attributes["messaging.batch.message_count"] = len(leases)
        links = [link for lease in leases if (link := _link(lease.options, lease.job_id)) is not None]
        return self._tracer.start_span(
            f"process {first.queue}", kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )

    def _end(self, error: BaseException | None) -> None:
        endings = [str(attempt.ending()) for attempt in self._attempts]
        if len(endings) == 1:
            self._span.set_attribute("jobqueue.outcome", endings[0])
        told: set[int] = set()
        for attempt, ending in zip(self._attempts, endings, strict=True):
            if attempt.error is None or id(attempt.error) in told or ending not in (*_ERRORS, "finished"):
                continue
            # One error may be that of all jobs of a call.
            told.add(id(attempt.error))
            if ending in _ERRORS:
                _fail(self._span, attempt.error)
            else:
                _tell(self._span, attempt.error)


def _attributes(name: str, kind: str, queue: str | None) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "messaging.system": "jobqueue",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    return found if queue is None else found | {"messaging.destination.name": queue}


def _link(options: object, job_id: int) -> Link | None:
    """A link to the span that a job's options name. None without one: plain SQL may have written anything."""
    if not isinstance(options, dict):
        return None
    headers = {name: options[name] for name in ("traceparent", "tracestate") if isinstance(options.get(name), str)}
    found = trace.get_current_span(_W3C.extract(headers, context.Context())).get_span_context()
    return Link(found, {"messaging.message.id": str(job_id)}) if found.is_valid else None


def _fail(span: Span, error: BaseException) -> None:
    name = dotted_path(type(error))
    span.set_status(Status(StatusCode.ERROR, name))
    span.set_attribute("error.type", name)
    _tell(span, error)


def _tell(span: Span, error: BaseException) -> None:
    """Add the event of an error without its message, which may hold a payload or a secret."""
    frames = traceback.format_tb(_TRACEBACK.__get__(error), limit=-FRAMES_MAX)
    attributes = {"exception.type": dotted_path(type(error)), "exception.stacktrace": "".join(frames)}
    span.add_event("exception", attributes)
