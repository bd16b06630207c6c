"""@task: a Django Tasks Task with the fields of a job queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from jobqueue.base.compat import AnyTask, InvalidTaskBackend, Task, TaskResult, task_backends
from jobqueue.base.validation import did_you_mean
from jobqueue.conf.task_spec import OPTIONS, TaskFields, TaskSpec, UsingFields, check_options
from jobqueue.exceptions import InvalidType, InvalidValue, UnknownMethod
from jobqueue.tasks import registry
from jobqueue.tasks.signature import method_advice, option_advice
from jobqueue.tasks.versions import Upcaster, add_upcaster

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
class JobTask(TaskSpec, _Base[P, T], Generic[P, T]):
    """A task: Django's fields (priority, queue_name, run_after, backend, takes_context) and the options of TaskSpec.

    Making one registers it, as the decorator does; using() makes a copy that is not registered.
    """

    def __post_init__(self) -> None:
        self._check(OPTIONS)
        if self.move_to is not None and self.move_to == self.queue_name:
            raise InvalidValue(
                f"task {self.module_path}: move_to is {self.move_to!r}, the task's own queue, so nothing would move. "
                "Name another queue, or remove move_after and move_to."
            )
        registry.add_task(self.module_path, self)

    def _check(self, names: Collection[str]) -> None:
        check_priority(self.priority)
        check_backend(self.backend, lambda: Task.__post_init__(self))
        check_options(self, self.module_path, names)

    def using(self, **given: Unpack[UsingFields]) -> Self:
        """A copy with other values; None leaves a field unchanged.

        Raises InvalidValue, InvalidType, or Django's InvalidTask and InvalidTaskBackend.
        """
        refuse_unknown(given, UsingFields.__annotations__, "using()")
        # Not by replace(), which would register it, nor by copy(): Django 6.1 would look the function up by its path.
        changes, made = {name: value for name, value in given.items() if value is not None}, object.__new__(type(self))
        kind: Any = type(self)
        for name in _field_names(kind):
            object.__setattr__(made, name, changes[name] if name in changes else getattr(self, name))
        made._check(given)
        return made

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


@cache
def _field_names(kind: type[JobTask[Any, Any]]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


#: fields that only the other of the two takes, and how they are written there
_IN_USING = {"run_after": ".using(run_after=...) of the task"}
_TASK_ONLY = {*TaskFields.__annotations__, "takes_context"} - {*UsingFields.__annotations__}
_IN_TASK = {name: f"@task({name}=...)" for name in _TASK_ONLY}


class _UnknownBackend(InvalidValue, InvalidTaskBackend):  # type: ignore[valid-type,misc]
    """What Django Tasks raises for an alias that is not in TASKS."""


def check_backend(alias: object, look_up: Callable[[], object]) -> None:
    """Call `look_up`, which looks for the backend of `alias`.

    Raises InvalidType, or Django's InvalidTaskBackend for what is not in TASKS.
    """
    if not isinstance(alias, str):
        raise InvalidType(f"backend must be an alias of TASKS, got {type(alias).__name__}. Nothing was written.")
    try:
        look_up()
    except InvalidTaskBackend as error:
        if alias in task_backends.settings:
            raise
        known = ", ".join(sorted(task_backends.settings))
        # Django's sentence is at the end, for code that looks for it.
        raise _UnknownBackend(
            f"the backend {alias!r}{did_you_mean(alias, task_backends.settings)} is not in TASKS ({known}). Nothing "
            f"was written; add it to TASKS, or use another backend. ({error})"
        ) from None


def check_priority(priority: object) -> None:
    """Raise InvalidType for what is no number. Django Tasks checks the range, and refuses fractions."""
    if isinstance(priority, int) or (isinstance(priority, float) and math.isfinite(priority)):
        return
    raise InvalidType(f"priority must be an int, got {priority!r:.40}. Nothing was written; larger numbers run first.")


def refuse_unknown(given: Collection[str], known: Collection[str], where: str) -> None:
    """Raise InvalidType for a field of `given` that @task or using() does not have."""
    belongs_in = _IN_USING if where == "@task" else _IN_TASK
    for name in given:
        if name not in known:
            advice = option_advice(name, "@task" if where == "@task" else ".using")
            near = f" ({advice})" if advice else did_you_mean(name, known)
            hint = f" (it belongs in {belongs_in[name]})" if name in belongs_in else near
            raise InvalidType(
                f"{where} has no field {name!r}{hint}. Nothing was written; the fields are {', '.join(sorted(known))}."
            )


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

    Works with any backend in TASKS; the options of TaskSpec only take effect with
    jobqueue.backends.JobQueueBackend. Put tasks into <app>/tasks.py, where workers look. Raises Django's InvalidTask,
    InvalidTaskBackend, or InvalidValue and InvalidType for our fields.
    """
    refuse_unknown(ours, TaskFields.__annotations__, "@task")

    def decorate(func: Callable[..., Any]) -> JobTask[Any, Any]:
        # Looked up now, so that a wrong alias raises here and not at the first enqueue.
        check_backend(backend, lambda: task_backends[backend])
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


class Call(NamedTuple):
    """The arguments of one call of a task."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def enqueue_many(task: AnyTask, calls: Iterable[Any]) -> list[TaskResult[Any]]:
    """The results of `calls`. A backend that is not ours gets them one by one."""
    backend: Any = task.get_backend()
    given = checked_calls(task, calls)
    if (together := getattr(backend, "enqueue_many", None)) is not None:
        found: list[TaskResult[Any]] = together(task, given)
        return found
    return [backend.enqueue(task, list(call.args), dict(call.kwargs)) for call in given]


async def aenqueue_many(task: AnyTask, calls: Iterable[Any]) -> list[TaskResult[Any]]:
    """enqueue_many() on an event loop."""
    backend: Any = task.get_backend()
    given = checked_calls(task, calls)
    if (together := getattr(backend, "aenqueue_many", None)) is not None:
        found: list[TaskResult[Any]] = await together(task, given)
        return found
    return [await backend.aenqueue(task, list(call.args), dict(call.kwargs)) for call in given]


def checked_calls(task: AnyTask, calls: Iterable[Any]) -> list[Call]:
    """`calls` as arguments. Raises InvalidType for what is neither a tuple or list nor a dict with str keys."""
    if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Iterable):
        raise InvalidType(
            f"enqueue_many() of {task.module_path} takes a list of calls, got {type(calls).__name__}. Nothing was "
            "written; give a tuple of positional arguments or a dict of keyword arguments for each job."
        )
    found = []
    for number, call in enumerate(calls):
        if isinstance(call, (tuple, list)):
            found.append(Call(call, {}))
        elif isinstance(call, dict) and all(isinstance(name, str) for name in call):
            found.append(Call((), call))
        else:
            raise InvalidType(
                f"call {number} of enqueue_many() of {task.module_path} is {call!r:.80}. Nothing was written; each "
                "call is a tuple of positional arguments, as (1,), or a dict of keyword arguments."
            )
    return found
