"""Warnings about retries that multiply, because a running job or a repeated delivery enqueues jobs with their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON
from jobqueue.context.job_context import current_job

logger = logging.getLogger("jobqueue")

_reported: set[str] = set()
_topics_reported: set[str] = set()
#: topic and number of the attempt of the event that is delivered here
_delivery: ContextVar[tuple[str, int] | None] = ContextVar("jobqueue_delivery", default=None)


def warn_of_own_copy(task: AnyTask, payload: Mapping[str, JSON]) -> None:
    """Log once that the running job enqueues its own task with its own arguments."""
    job = current_job()
    if job is None or job.lease.task != task.module_path or task.module_path in _reported:
        return
    if job.lease.payload == payload:
        _reported.add(task.module_path)
        logger.warning(
            "retries are nested: a job of %s enqueues the same task with the same arguments. The new job begins with "
            "attempt 1, so max_attempts does not end it. To try again raise jobqueue.exceptions.Retry, to wait raise "
            "Snooze",
            task.module_path,
        )


@contextmanager
def delivering(topic: str, attempt: int) -> Iterator[None]:
    """In the block, an event of this topic is delivered for the attempt-th time, and a failure delivers it again."""
    before = _delivery.set((topic, attempt))
    try:
        yield
    finally:
        _delivery.reset(before)


def warn_of_repeated_delivery(task: AnyTask, *, keyed: bool) -> None:
    """Log once for each topic that a repeated delivery enqueues a job without a dedupe key."""
    topic, attempt = _delivery.get() or ("", 1)
    if attempt == 1 or keyed or topic in _topics_reported:
        return
    _topics_reported.add(topic)
    logger.warning(
        "retries are nested: delivery %d of an event %r enqueues a job of %s without a dedupe_key, so each delivery "
        "may add a job with attempts of its own. Pass a dedupe_key with the event's id, or make the subscriber atomic",
        attempt,
        topic,
        task.module_path,
    )
