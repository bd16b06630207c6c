"""The spans, by the semantic conventions of OpenTelemetry for messaging, without values of jobs in them.

An error of a span processor, or of an exporter, is logged and reaches no enqueue and no job.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanKind, Tracer, TracerProvider

from jobqueue.otel.guarded import W3C, Guarded, attributes, fail, headers_of, tell
from jobqueue.otel.outbox_spans import DeliverySpan, PublishSpan

if TYPE_CHECKING:
    from jobqueue.outbox import Event
    from jobqueue.worker.run.attempt import Attempt

#: how long the end of a process may wait until its last spans are sent
FLUSH_SECONDS = 3.0
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

    def publishing(self, topic: str) -> PublishSpan:
        """The PRODUCER span that creates an event of the outbox."""
        return PublishSpan(self._tracer, topic)

    def delivering(self, events: Sequence[Event], *, here: bool) -> DeliverySpan:
        """The PRODUCER span of a delivery to a broker or a queue; `here`, to subscribers, the CONSUMER span."""
        return DeliverySpan(self._tracer, events, here=here)

    def flush(self) -> None:
        """Have the provider send what has ended, for at most FLUSH_SECONDS."""
        provider: Any = self._provider or trace.get_tracer_provider()
        if (force_flush := getattr(provider, "force_flush", None)) is None:
            return
        # In a thread: exporters retry for as long as they like.
        thread = threading.Thread(target=force_flush, args=[int(FLUSH_SECONDS * 1000)], name="spans", daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)


class EnqueueSpan(Guarded):
    """The span of an enqueue."""

    def __init__(self, tracer: Tracer, queues: Collection[str], tasks: Collection[str], count: int) -> None:
        super().__init__(tracer)
        self._queues, self._tasks, self._count = queues, tasks, count

    @property
    def headers(self) -> Mapping[str, str]:
        """As headers_of()."""
        return headers_of(self._span)

    def note(self, ids: Sequence[int], *, added: int) -> None:
        """Record the id of a job that is alone, and how many were added if some keys were held."""
        if len(ids) == 1:
            self._span.set_attribute("messaging.message.id", str(ids[0]))
        if added < self._count:
            self._span.set_attribute("jobqueue.added", added)

    def _start(self) -> Span:
        queue = next(iter(self._queues)) if len(self._queues) == 1 else None
        found = attributes("enqueue", "send", queue)
        if len(self._tasks) == 1:
            found["jobqueue.task"] = next(iter(self._tasks))
        if self._count > 1:
            found["messaging.batch.message_count"] = self._count
        name = "enqueue" if queue is None else f"enqueue {queue}"
        return self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=found)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            fail(self._span, error)


class RunSpan(Guarded):
    """The span of one call, usually of one job."""

    def __init__(self, tracer: Tracer, attempts: Sequence[Attempt]) -> None:
        super().__init__(tracer)
        self._attempts = attempts

    def _start(self) -> Span:
        leases = [attempt.lease for attempt in self._attempts]
        first = leases[0]
        found = attributes("process", "process", first.queue) | {"messaging.client.id": first.worker}
        if first.task is not None:
            found["jobqueue.task"] = first.task
        if len(leases) == 1:
            found["messaging.message.id"] = str(first.job_id)
            found["jobqueue.attempt"] = first.attempt
            found["jobqueue.max_attempts"] = first.max_attempts
        else:
            found["messaging.batch.message_count"] = len(leases)
        links = [link for lease in leases if (link := _link(lease.options, lease.job_id)) is not None]
        return self._tracer.start_span(f"process {first.queue}", kind=SpanKind.CONSUMER, attributes=found, links=links)

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
                fail(self._span, attempt.error)
            else:
                tell(self._span, attempt.error)


def _link(options: object, job_id: int) -> Link | None:
    """A link to the span that a job's options name; None if they name none, as plain SQL may write anything."""
    if not isinstance(options, dict):
        return None
    headers = {name: options[name] for name in ("traceparent", "tracestate") if isinstance(options.get(name), str)}
    found = trace.get_current_span(W3C.extract(headers, context.Context())).get_span_context()
    return Link(found, {"messaging.message.id": str(job_id)}) if found.is_valid else None
