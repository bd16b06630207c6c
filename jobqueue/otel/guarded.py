"""A span around a block, and what all spans here share. An error of a span is logged and reaches no caller."""

from __future__ import annotations

import logging
import os
import traceback
from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace import Span, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobqueue.failures import dotted_path
from jobqueue.masking import mask_text

logger = logging.getLogger("jobqueue.otel")

#: the innermost frames of a traceback that an event keeps
FRAMES_MAX = 30
W3C = TraceContextTextMapPropagator()
# Through the base class: a subclass may have a property of this name, which raises.
_TRACEBACK = BaseException.__dict__["__traceback__"]


class Guarded:
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


def headers_of(span: Span) -> dict[str, str]:
    """traceparent, and tracestate if there is one, of a span that is sampled: a link to another leads nowhere."""
    found: dict[str, str] = {}
    if span.get_span_context().trace_flags.sampled:
        W3C.inject(found, trace.set_span_in_context(span))
    return found


def attributes(name: str, kind: str, destination: str | None) -> dict[str, str | int]:
    """The attributes that all spans of messaging have. `destination`: a queue or a topic."""
    found: dict[str, str | int] = {
        "messaging.system": "jobqueue",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    return found if destination is None else found | {"messaging.destination.name": destination}


def fail(span: Span, error: BaseException) -> None:
    """Give the span the status ERROR, and the event of its error."""
    name = dotted_path(type(error))
    span.set_status(Status(StatusCode.ERROR, name))
    span.set_attribute("error.type", name)
    tell(span, error)


def tell(span: Span, error: BaseException) -> None:
    """Add the event of an error without its message, which may hold a payload or a secret.

    The frames show lines of code, which may hold a password, too.
    """
    frames = traceback.format_tb(_TRACEBACK.__get__(error), limit=-FRAMES_MAX)
    attributes = {"exception.type": dotted_path(type(error)), "exception.stacktrace": mask_text("".join(frames))}
    span.add_event("exception", attributes)
