"""The tracer of this process, or None: jobqueue.otel sets it, and the producer, the outbox and the workers read it.

It stands below them all and imports nothing, so that a process without tracing pays for one look at a variable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class EnqueueSpan(Protocol):
    """The span of one enqueue, which ends with its `with` block."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What to store with the jobs, so that their runs find this span; empty if the span is not kept."""

    def note(self, ids: Sequence[int], *, added: int) -> None:
        """Record the ids that the enqueue gave, and how many jobs it has added."""


class PublishSpan(Protocol):
    """The span of one publish(), which ends with its `with` block."""

    def note(self, event_id: int, /) -> None:
        """Record the id of the event."""


class DeliverySpan(Protocol):
    """The span of one delivery of events by a relay, which ends with its `with` block."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What to send with the events, so that their receivers find this span; empty if the span is not kept."""

    def note(self, outcomes: Sequence[BaseException | None], /) -> None:
        """Record what became of the events: None for each that has arrived."""


class Tracer(Protocol):
    """Makes spans. Nothing that it calls may raise an error into an enqueue or a run."""

    def enqueueing(
        self, queues: Collection[str], tasks: Collection[str], *, count: int
    ) -> AbstractContextManager[EnqueueSpan]:
        """The span of an enqueue of `count` jobs in these queues, of these tasks."""

    def running(self, attempts: Sequence[Any]) -> AbstractContextManager[object]:
        """The span of one call, which runs these attempts (worker.run.attempt.Attempt)."""

    def publishing(self, topic: str) -> AbstractContextManager[PublishSpan]:
        """The span of a publish() of one event of this topic."""

    def delivering(self, events: Sequence[Any], *, here: bool) -> AbstractContextManager[DeliverySpan]:
        """The span of one delivery of these events (outbox.Event); `here`: to subscribers in this process."""

    def flush(self) -> None:
        """Send what has ended: this process is about to end."""


_tracer: Tracer | None = None


def trace_with(tracer: Tracer | None) -> None:
    """Let `tracer` make the spans of this process and of its forks; None ends tracing."""
    global _tracer
    _tracer = tracer


def current() -> Tracer | None:
    """The object that makes spans, or None if this process is not traced."""
    return _tracer
