"""@task: a Django Tasks Task with the fields of a job queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from jobqueue.backoff import Wait
from jobqueue.compat import Task, TaskResult, task_backends
from jobqueue.conf.result_ttl import declare_ttl
from jobqueue.exceptions import InvalidType, InvalidValue, UnknownMethod
from jobqueue.failures.crash_policies import set_on_crash
from jobqueue.failures.project import read_causes, set_task_causes
from jobqueue.gates.declared import declare
from jobqueue.tasks import registry
from jobqueue.tasks.calls import aenqueue_many, enqueue_many
from jobqueue.tasks.field_types import DedupeKey, Errors, Expires, OrderingKey, TaskFields, UsingFields
from jobqueue.tasks.fields import check_backend, check_priority, refuse_unknown
from jobqueue.tasks.habits import method_advice
from jobqueue.tasks.policy import check_own_queue, checked_policy
from jobqueue.tasks.versions import Upcaster, add_upcaster
from jobqueue.validation import TASK_CHARS, check_instant, check_int, check_key, check_seconds

if TYPE_CHECKING:
    from jobqueue.tasks.results import JobTaskContext

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U", bound=Upcaster)

if TYPE_CHECKING:
    _Base = Task
else:

    class _Base:
        """Django's own Task is generic only in its type stubs."""

        def __class_getitem__(cls, _parameters):
            return Task


DEFAULT_BACKEND, DEFAULT_QUEUE = "default", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTask(_Base[P, T], Generic[P, T]):
    """A task. Its fields besides Django's (priority, queue_name, run_after, backend, takes_context):

    max_attempts: runs that may end in failure or loss before the job is FAILED (None: the queue's, 25).
    backoff: the wait between attempts: a Backoff, seconds, a table of seconds, or a function (None: JOBQUEUE's).
    retry_on: only these exceptions are retried (None: all). Lost runs are always retried.
    no_retry_on: these are not retried; takes precedence over retry_on.
    retry_until_seconds: no retry begins later than this after the job fell due, or was retried by hand.
    move_after, move_to: after this many failures the job continues in that queue.
    dependency: the outside service that its runs need; its retries wait while they would be too many of its runs.
    result_ttl_seconds: its DONE jobs are deleted so long after their end (None: as RETENTION says).
    lease_seconds: lease length, if longer than the worker's; for jobs that cannot heartbeat (None: the worker's).
    timeout_seconds: SoftTimeout is raised inside the task after this long (None: JOBQUEUE's, no limit).
    hard_timeout_seconds: its worker process is killed after this long, and only this job charged (None: JOBQUEUE's).
    dedupe_key: str or bytes of 1-64 bytes, or a function of the arguments; enqueue returns the job that holds the key.
    unique: "waiting": the key is held until the claim; "unfinished": until the end (None: DEDUPE_SECONDS longer).
    unique_seconds: the key is held for so long after the enqueue at most; with unique=None for exactly so long.
        Without a dedupe_key, either of them makes a hash of the task and its arguments the key.
    on_conflict: what enqueue does with a job that waits and holds the key: "keep" it (None), or "replace" its contents.
    tags: names by which jobs are found: Job.objects.tagged("billing").
    ordering_key: likewise; jobs of a queue with equal keys run strictly one after another, in the order of enqueue.
    concurrency_limit: so many of its jobs run at once in a queue; with a concurrency_key, of each key (None: no limit).
    concurrency_key: as dedupe_key; jobs of a queue with equal keys share their limits.
    rate_limit: "10/s" or "100/m": how fast its jobs start in a queue; with a concurrency_key, those of each key.
    expires: no attempt starts after this: an aware datetime, or seconds from the moment the job is due.
    on_crash: what follows a lost run: "retry", "fail" (FAILED) or "hold" (it waits for retry() or discard()).
    ack_each: commit the end of each job separately, before its thread starts another one: a crash repeats only what was
        running. Slower; by default ends are written together, a few milliseconds later.
    version: of the arguments; increase it when they change, and add an upcaster().
    aliases: earlier dotted paths of this task, whose jobs it runs.
    causes: the cause of exceptions by class path, {"app.CardDeclined": "DATA"}; precedes JOBQUEUE["CAUSES"].
    """

    max_attempts: int | None = None
    backoff: Wait | None = None
    retry_on: Errors | None = None
    no_retry_on: Errors | None = None
    retry_until_seconds: float | timedelta | str | None = None
    move_after: int | None = None
    move_to: str | None = None
    dependency: str | None = None
    result_ttl_seconds: float | timedelta | str | None = None
    lease_seconds: float | None = None
    timeout_seconds: float | None = None
    hard_timeout_seconds: float | None = None
    dedupe_key: DedupeKey | None = None
    unique: Literal["waiting", "unfinished"] | None = None
    unique_seconds: float | timedelta | str | None = None
    on_conflict: Literal["keep", "replace"] | None = None
    tags: Sequence[str] = ()
    ordering_key: OrderingKey | None = None
    concurrency_key: DedupeKey | None = None
    concurrency_limit: int | None = None
    rate_limit: str | None = None
    expires: Expires | None = None
    on_crash: Literal["retry", "fail", "hold"] = "retry"
    ack_each: bool = False
    version: int = 1
    aliases: Sequence[str] = ()
    causes: Mapping[str, str] = field(default_factory=dict, hash=False)  # tasks are hashable

    def __post_init__(self) -> None:
        check_priority(self.priority)
        check_backend(self.backend, lambda: Task.__post_init__(self))
        for name, value in checked_policy(self).items():
            object.__setattr__(self, name, value)
        for name in ("lease_seconds", "timeout_seconds", "hard_timeout_seconds"):
            if getattr(self, name) is not None:
                check_seconds(getattr(self, name), name)
        for name in ("dedupe_key", "ordering_key", "concurrency_key"):
            if (key := getattr(self, name)) is not None and not callable(key):
                check_key(key, name)
        if self.expires is not None:
            _check_expires(self.expires)
        if not isinstance(self.ack_each, bool):
            raise InvalidType(f"ack_each must be True or False, got {self.ack_each!r}.")
        check_int(self.version, "version", 1)
        object.__setattr__(self, "aliases", _paths(self.aliases))
        causes = read_causes(self.causes, f"causes of {self.module_path}")
        object.__setattr__(self, "causes", causes)
        registry.add_task(self.module_path, self)
        for alias in self.aliases:
            registry.add_alias(alias, self)
        for name in (self.module_path, *self.aliases):
            set_task_causes(name, causes)
            set_on_crash(name, self.on_crash)

    def using(self, **given: Unpack[UsingFields]) -> Self:
        """A copy with other values; None leaves a field unchanged.

        Raises InvalidValue, InvalidType, or Django's InvalidTask and InvalidTaskBackend.
        """
        refuse_unknown(given, UsingFields.__annotations__, "using()")
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(self, **changes)

    def enqueue_many(self, calls: Iterable[Sequence[Any] | Mapping[str, Any]]) -> list[TaskResult[Any]]:
        """Add one job for each call, all or none; their TaskResults in order, on every database.

        A call is a tuple or list of positional arguments, or a dict of keyword arguments. Keys that are functions are
        called for each; one that is held, or comes twice, gives the result of the job that holds it. Raises as
        enqueue() does, and InvalidType for anything but calls, before anything is written.
        """
        return enqueue_many(self, calls)

    async def aenqueue_many(self, calls: Iterable[Sequence[Any] | Mapping[str, Any]]) -> list[TaskResult[Any]]:
        """enqueue_many() on an event loop: arguments are checked there, the rest is one call in Django's thread."""
        return await aenqueue_many(self, calls)

    def upcaster(self, from_version: int) -> Callable[[U], U]:
        """Decorator for a function that converts (args, kwargs) of `from_version` to those of the next version."""

        def register(func: U) -> U:
            add_upcaster(self, from_version, func)
            return func

        return register

    #: Django's templates call what can be called, and show a task otherwise
    do_not_call_in_templates: ClassVar[bool] = True

    if not TYPE_CHECKING:  # mypy would accept every attribute, and calls

        def __getattr__(self, name: str) -> object:
            # A copy that is being made has no func yet.
            if name.startswith("_") or name == "func" or not (advice := method_advice(name, self.func.__name__)):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise UnknownMethod(f"The task {self.module_path} has no {name}; {advice}.")

        def __call__(self, *args: object, **kwargs: object) -> object:
            name = self.func.__name__
            raise InvalidType(
                f"{self.module_path} is a task, so it cannot be called like its function. Nothing was run or written; "
                f"{name}.enqueue(...) adds a job, and {name}.call(...) runs the function here and now."
            )


def _check_expires(given: Any) -> None:
    if isinstance(given, datetime):
        check_instant(given, "expires")
    else:
        check_seconds(given.total_seconds() if isinstance(given, timedelta) else given, "expires")


def _paths(given: Any) -> tuple[str, ...]:
    if not isinstance(given, (tuple, list)) or not all(isinstance(path, str) for path in given):
        raise InvalidType(f"aliases must be a list of dotted paths, got {given!r:.80}.")
    for path in given:
        if not all(part.isidentifier() for part in path.split(".")) or len(path) > TASK_CHARS:
            raise InvalidValue(f"the alias {path[:80]!r} is not a dotted path of at most {TASK_CHARS} characters.")
    return tuple(given)


@overload
def task(function: Callable[P, T], /) -> JobTask[P, T]: ...


@overload
def task(
    *, takes_context: Literal[True], **fields: Unpack[TaskFields]
) -> Callable[[Callable[Concatenate[JobTaskContext, P], T]], JobTask[P, T]]: ...


@overload
def task(
    *, takes_context: Literal[False] = ..., **fields: Unpack[TaskFields]
) -> Callable[[Callable[P, T]], JobTask[P, T]]: ...


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

    Works with any backend in TASKS; the fields of JobTask only take effect with
    jobqueue.backends.JobQueueBackend. Put tasks into <app>/tasks.py, where workers look. Raises Django's InvalidTask,
    InvalidTaskBackend, or InvalidValue and InvalidType for our fields.
    """
    refuse_unknown(ours, TaskFields.__annotations__, "@task")

    def decorate(func: Callable[..., Any]) -> JobTask[Any, Any]:
        # Looked up now, so that a wrong alias raises here and not at the first enqueue.
        check_backend(backend, lambda: task_backends[backend])
        made: JobTask[Any, Any] = JobTask(
            func=func,
            queue_name=queue_name,
            priority=priority,
            backend=backend,
            run_after=None,
            takes_context=takes_context,
            **ours,
        )
        check_own_queue(made)
        # Not of copies that using() makes: a job's own dependency is that of the job.
        declare(made.module_path, made.aliases, made.concurrency_limit, made.rate_limit, made.dependency)
        declare_ttl(made.module_path, made.aliases, made.result_ttl_seconds)
        return made

    return decorate if function is None else decorate(function)
