"""The span of an enqueue, which its jobs carry in their options to the worker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from jobqueue import tracing
from jobqueue.db.fields import Encoded
from jobqueue.producer.insert import NewJob


class Untraced:
    """Stands for the span of an enqueue that nobody traces."""

    __slots__ = ("jobs",)

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.jobs = jobs

    def __enter__(self) -> Untraced:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, ids: Sequence[int], added: int) -> None:
        """Nothing."""


class Traced(Untraced):
    """The span of an enqueue, and its jobs with what their runs need to find it."""

    __slots__ = ("_span",)

    def __init__(self, jobs: Sequence[NewJob], span: tracing.EnqueueSpan) -> None:
        super().__init__(_with_headers(jobs, span.headers) if span.headers else jobs)
        self._span = span

    def note(self, ids: Sequence[int], added: int) -> None:
        """Record the ids of the jobs, and how many were added."""
        self._span.note(ids, added=added)


def traced(jobs: Sequence[NewJob]) -> AbstractContextManager[Untraced]:
    """A `with` block that is the span of the enqueue of `jobs`; insert those that it gives."""
    tracer = tracing.current()
    return Untraced(jobs) if tracer is None or not jobs else _traced(jobs, tracer)


@contextmanager
def _traced(jobs: Sequence[NewJob], tracer: tracing.Tracer) -> Iterator[Traced]:
    queues, tasks = {job.queue for job in jobs}, {job.task for job in jobs if job.task is not None}
    with tracer.enqueueing(queues, tasks, count=len(jobs)) as span:
        yield Traced(jobs, span)


def _with_headers(jobs: Sequence[NewJob], headers: Mapping[str, str]) -> list[NewJob]:
    # In the options, which a claim reads anyway: no column, and no statement more.
    texts = {own: _text(own, headers) for own in {job.options for job in jobs}}
    return [replace(job, options=texts[job.options]) for job in jobs]


def _text(own: Encoded | None, headers: Mapping[str, str]) -> Encoded:
    return Encoded(json.dumps((json.loads(own) if own else {}) | dict(headers), separators=(",", ":")))
