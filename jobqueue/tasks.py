"""@task: a Django Tasks Task with what a queue needs besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from jobqueue import registry
from jobqueue.backoff import Backoff
from jobqueue.compat import Task, task_backends
from jobqueue.exceptions import InvalidType
from jobqueue.names import check_int, check_key, check_seconds

P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:
    _Base = Task[Any, Any]
else:
    # The backport's Task is generic at run time, Django's own only in its type stubs.
    _Base = Task

DEFAULT_BACKEND, DEFAULT_QUEUE = "default", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTask(_Base):
    """A task. Beside Django's fields (priority, queue_name, run_after, backend, takes_context):

    max_attempts: runs that may end in failure or loss before the job is FAILED (None: the queue's, 25).
    backoff: a Backoff for the waits between attempts (None: JOBQUEUE's).
    lease_seconds: a lease longer than the worker's, for work that beats no heart (None: the worker's).
    timeout_seconds: after this long SoftTimeout is raised inside the task (None: JOBQUEUE's, no limit).
    hard_timeout_seconds: after this long its worker process is killed and only this job charged (None: JOBQUEUE's).
    dedupe_key: str or bytes of 1-64 bytes; while it is held, enqueue returns the existing job.
    ack_each: commit the end of every job by itself, before its thread starts another: a crash repeats only what was
        running. Slower; by default ends are written together, a few milliseconds after.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = None
    lease_seconds: float | None = None
    timeout_seconds: float | None = None
    hard_timeout_seconds: float | None = None
    dedupe_key: str | bytes | None = None
    ack_each: bool = False

    def __post_init__(self) -> None:
        _Base.__post_init__(self)
        if self.max_attempts is not None:
            check_int(self.max_attempts, "max_attempts", 1)
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise InvalidType(f"backoff must be a jobqueue.backoff.Backoff, got {type(self.backoff).__name__}.")
        for name in ("lease_seconds", "timeout_seconds", "hard_timeout_seconds"):
            if getattr(self, name) is not None:
                check_seconds(getattr(self, name), name)
        if self.dedupe_key is not None:
            check_key(self.dedupe_key)
        if not isinstance(self.ack_each, bool):
            raise InvalidType(f"ack_each must be True or False, got {self.ack_each!r}.")
        registry.add_task(self.module_path, self)

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        lease_seconds: float | None = None,
        timeout_seconds: float | None = None,
        hard_timeout_seconds: float | None = None,
        dedupe_key: str | bytes | None = None,
        ack_each: bool | None = None,
    ) -> JobTask:
        """A copy with other values; None keeps what is there. Raises InvalidValue or Django's InvalidTask."""
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            "max_attempts": max_attempts,
            "backoff": backoff,
            "lease_seconds": lease_seconds,
            "timeout_seconds": timeout_seconds,
            "hard_timeout_seconds": hard_timeout_seconds,
            "dedupe_key": dedupe_key,
            "ack_each": ack_each,
        }
        return replace(self, **{name: value for name, value in given.items() if value is not None})


@overload
def task(function: Callable[P, T], /) -> JobTask: ...


@overload
def task(
    *,
    queue_name: str = ...,
    priority: int = ...,
    backend: str = ...,
    takes_context: bool = ...,
    max_attempts: int | None = ...,
    backoff: Backoff | None = ...,
    lease_seconds: float | None = ...,
    timeout_seconds: float | None = ...,
    hard_timeout_seconds: float | None = ...,
    dedupe_key: str | bytes | None = ...,
    ack_each: bool = ...,
) -> Callable[[Callable[P, T]], JobTask]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    queue_name: str = DEFAULT_QUEUE,
    priority: int = 0,
    backend: str = DEFAULT_BACKEND,
    takes_context: bool = False,
    **ours: Any,
) -> Any:
    """Make a module-level function (or coroutine function) a task: `.enqueue(*args, **kwargs)` adds a job.

    Works with any backend in TASKS; our fields (see JobTask) only have an effect with
    jobqueue.backends.JobQueueBackend. Put tasks into <app>/tasks.py, where workers look. Raises Django's InvalidTask,
    or InvalidValue for our fields.
    """

    def decorate(func: Callable[..., Any]) -> JobTask:
        # The backend is looked up now so that a wrong alias is an error here, not at the first enqueue.
        task_backends[backend]
        return JobTask(
            func=func,
            queue_name=queue_name,
            priority=priority,
            backend=backend,
            run_after=None,
            takes_context=takes_context,
            **ours,
        )

    return decorate if function is None else decorate(function)
