"""Retries inside a job that can be seen before they multiply: in what wraps a task, and in what a job enqueues."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from jobqueue.compat import AnyTask
from jobqueue.conf import Settings
from jobqueue.context.job_context import current_job
from jobqueue.db import Problem
from jobqueue.failures.nested import wrapped_tries
from jobqueue.payload import JSON
from jobqueue.tasks import registry
from jobqueue.validation import did_you_mean

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


def nesting_problems(settings: Settings) -> Iterator[Problem]:
    """W031: a library repeats the calls of a task. W032: a task names a dependency that has no settings."""
    known = settings.dependencies
    for path in registry.names()[0]:
        task = registry.find_task(path)
        if task is None or task.module_path != path:
            continue
        if (wrapped := wrapped_tries(task.func)) is not None:
            own = getattr(task, "max_attempts", None)
            yield _nested(path, *wrapped, own or settings.queue_max_attempts(task.queue_name))
        name = getattr(task, "dependency", None)
        if name is not None and known and name not in known:
            yield Problem(
                "W032",
                f"task {path} has the dependency {name!r}, which DEPENDENCIES of JOBQUEUE lacks"
                f"{did_you_mean(name, known)}: it has the default limits.",
                f"Correct the name, or add {name!r}: {{}} to DEPENDENCIES.",
            )


def _nested(path: str, library: str, tries: int | None, attempts: int) -> Problem:
    if tries is None:
        much = f"each of its {attempts} attempts repeats the call until {library} gives up"
    else:
        much = f"{attempts} attempts x {tries} tries are up to {attempts * tries} calls"
    return Problem(
        "W031",
        f"retries are nested: {library} repeats task {path} inside each attempt, {much}.",
        f"Let one layer retry: remove {library} from the task, or set max_attempts=1.",
    )
