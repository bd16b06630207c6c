"""The classes of JOBQUEUE["MIDDLEWARE"] and the calls of their methods, the outermost first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias

from asgiref.sync import iscoroutinefunction
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from jobqueue.base.payload import JSON, MAX_DEPTH, encode
from jobqueue.conf import load
from jobqueue.exceptions import InvalidType, InvalidValue, PayloadTooLarge, WrongSettings

#: of the JSON text: it is stored with each job, and read by each claim
CONTEXT_BYTES_MAX = 4096
#: its name among the options of a job
CONTEXT = "context"
_METHODS = ("enqueue", "run", "arun")

#: the path of a class, and one of its methods
Step: TypeAlias = tuple[str, Callable[[Any, Callable[[], Any]], Any]]


@dataclass(slots=True)
class NewJobContext:
    """A job that is being added, for enqueue() of a middleware. Only changes of `context` have an effect."""

    task: str | None  # the path of the task; None for a job of a handler
    queue: str
    args: Sequence[JSON]  # of a handler's job: its payload
    kwargs: dict[str, JSON]
    context: dict[str, JSON] = field(default_factory=dict)  # stored with the job


@dataclass(frozen=True, slots=True)
class Chain:
    """The methods of the classes, by name; those of a class that lacks one are left out."""

    enqueue: tuple[Step, ...] = ()
    run: tuple[Step, ...] = ()
    arun: tuple[Step, ...] = ()
    without_arun: tuple[str, ...] = ()  # classes with run() only, which coroutine tasks cannot have around them


@cache
def chain() -> Chain:
    """The middleware of this process; its objects are made once. Raises WrongSettings for a class that is none."""
    paths = load().middleware
    if not paths:
        return Chain()
    made = [(path, _made(path)) for path in paths]
    steps = {name: tuple((path, getattr(one, name)) for path, one in made if hasattr(one, name)) for name in _METHODS}
    ours = {path for path, _ in steps["arun"]}
    return Chain(**steps, without_arun=tuple(path for path, _ in steps["run"] if path not in ours))


def _made(path: str) -> object:
    where = f"JOBQUEUE: MIDDLEWARE: {path!r}"
    try:
        kind = import_string(path)
    except ImportError as error:
        raise WrongSettings(f"{where} cannot be imported: {error}. Correct the path.") from error
    if not isinstance(kind, type):
        raise WrongSettings(f"{where} is no class. Name a class with enqueue(), run() or arun().")
    found = {name: method for name in _METHODS if callable(method := getattr(kind, name, None))}
    if not found:
        raise WrongSettings(f"{where} has no method enqueue(), run() or arun(). Add one, or remove the class.")
    for name, method in found.items():
        if iscoroutinefunction(method) != (name == "arun"):
            must = "must be a coroutine function" if name == "arun" else "must not be a coroutine function"
            raise WrongSettings(f"{where}: {name}() {must}. Write it with {'async ' * (name == 'arun')}def.")
    try:
        return kind()
    except TypeError as error:
        raise WrongSettings(f"{where} must be made without arguments: {error}.") from error


class _Next:
    """next() of one step, which may be called once."""

    __slots__ = ("_call", "_path", "called")

    def __init__(self, path: str, call: Callable[[], Any]) -> None:
        self._path, self._call, self.called = path, call, False

    def __call__(self) -> Any:
        if self.called:
            raise InvalidValue(f"the middleware {self._path} has called next() twice. Call it once.")
        self.called = True
        return self._call()

    def check(self, follows: str) -> None:
        if not self.called:
            raise InvalidValue(f"the middleware {self._path} returned without a call of next(). {follows}")


def context_of(job: NewJobContext) -> str | None:
    """Call enqueue() of all classes, for a job that is written afterwards; the JSON text of its context.

    None for an empty one. Raises what a class raises, InvalidType, PayloadError and PayloadTooLarge for a context that
    cannot be stored, InvalidValue if next() was not called once.
    """
    call: Callable[[], Any] = lambda: None  # noqa: E731
    for step in reversed(chain().enqueue):
        call = partial(_enqueue, step, job, call)
    call()
    if not isinstance(job.context, dict):
        raise InvalidType(f"the context of a job must be a dict, is {type(job.context).__name__}. Nothing was written.")
    if not job.context:
        return None
    text = encode(job.context, max_bytes=2**31, what="the context of the job", max_depth=MAX_DEPTH - 1)
    if (size := len(text.encode())) > CONTEXT_BYTES_MAX:
        raise PayloadTooLarge(
            f"the context that MIDDLEWARE gave the job has {size} bytes as JSON; the limit is {CONTEXT_BYTES_MAX}. "
            "Nothing was written; store the data elsewhere and put a reference to it into the context."
        )
    return text


def _enqueue(step: Step, job: NewJobContext, call: Callable[[], Any]) -> Any:
    path, method = step
    following = _Next(path, call)
    value = method(job, following)
    following.check("Nothing was written; an exception is the way to refuse a job.")
    return value


_NOT_RUN = "The job did not run; return next(), or raise Discard, Snooze or Retry."


def call_run(job: Any, call: Callable[[], Any]) -> Any:
    """What `call` returns, with run() of all classes around it."""
    for step in reversed(chain().run):
        call = partial(_run, step, job, call)
    return call()


def _run(step: Step, job: Any, call: Callable[[], Any]) -> Any:
    path, method = step
    following = _Next(path, call)
    value = method(job, following)
    following.check(_NOT_RUN)
    return value


async def acall_run(job: Any, call: Callable[[], Awaitable[Any]]) -> Any:
    """call_run() for a coroutine, with arun(). Raises WrongSettings if a class has run() only."""
    if chain().without_arun:
        raise WrongSettings(
            f"the middleware {chain().without_arun[0]} has run() but no arun(), and the task is a coroutine, so the "
            "job did not run. Add arun() to the class."
        )
    for step in reversed(chain().arun):
        call = partial(_arun, step, job, call)
    return await call()


async def _arun(step: Step, job: Any, call: Callable[[], Awaitable[Any]]) -> Any:
    path, method = step
    following = _Next(path, call)
    value = await method(job, following)
    following.check(_NOT_RUN)
    return value


def _forget(*, setting: str, **_: object) -> None:
    if setting == "JOBQUEUE":
        chain.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.middleware")
