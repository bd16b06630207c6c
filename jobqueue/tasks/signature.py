"""Whether arguments fit the signature of a task's function, and the key that is a hash of them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON, dump
from jobqueue.base.validation import did_you_mean, signature_of
from jobqueue.conf.task_spec import OPTIONS, UsingFields
from jobqueue.exceptions import WrongArguments

_CONTEXT = object()
#: no limit: the payload has been measured
_ANY_BYTES = 1 << 62
_PASSES_ALL = [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
_LATER = "run_after=timezone.now() + timedelta(seconds=60)"
_TRIES = "max_attempts=5"
_WAIT = "backoff=Backoff(base_seconds=30)"
_LIMIT = "timeout_seconds=60"
_ONCE = 'dedupe_key="..."'
#: option of another queue -> the field of @task and using()
_OPTIONS = {
    **dict.fromkeys(["countdown", "delay", "schedule_in"], _LATER),
    **dict.fromkeys(["eta", "schedule", "schedule_at", "run_at"], "run_after=an_aware_datetime"),
    **dict.fromkeys(["retries", "max_retries", "retry", "max_tries"], _TRIES),
    **dict.fromkeys(["retry_backoff", "retry_delay", "default_retry_delay", "min_backoff"], _WAIT),
    **dict.fromkeys(["soft_time_limit", "timeout", "job_timeout"], _LIMIT),
    **dict.fromkeys(["task_id", "job_id", "queueing_lock"], _ONCE),
    "time_limit": "hard_timeout_seconds=60",
    "autoretry_for": "retry_on=[SomeError]",
    "dont_autoretry_for": "no_retry_on=[SomeError]",
    "queue": 'queue_name="mail"',
    "lock": 'ordering_key="..."',
}
#: option of another queue -> what @task has for it
_OF_THE_TASK = {
    **dict.fromkeys(["bind", "pass_context", "context"], "@task(takes_context=True), with context as first parameter"),
    **dict.fromkeys(["acks_late", "reject_on_worker_lost", "ignore_result", "serializer"], "nothing instead"),
    "name": "nothing instead: the name of a task is the path of its function, and aliases=[...] keeps earlier paths",
}
_COMMIT = "{name}.enqueue(...) inside the transaction: the job is added if and only if it commits"
_CHAIN = "workflow('name').add({name}, ...), or group('name') for jobs without an order"
_EACH = "{name}.enqueue_many([(1,), (2,)]), with the arguments of each job"
#: method of a task of another queue -> what to write
_METHODS = {
    **dict.fromkeys(["delay", "send", "defer"], "{name}.enqueue(...)"),
    **dict.fromkeys(
        ["apply_async", "send_with_options", "schedule", "enqueue_at", "enqueue_in", "configure"],
        f"{{name}}.enqueue(...), or with options {{name}}.using({_LATER}).enqueue(...)",
    ),
    **dict.fromkeys(["delay_on_commit", "apply_async_on_commit"], _COMMIT),
    **dict.fromkeys(["apply", "call_local", "run", "fn"], "{name}.call(...), which runs the function here and now"),
    **dict.fromkeys(["s", "si", "signature", "subtask", "then", "message"], _CHAIN),
    **dict.fromkeys(["map", "starmap", "chunks"], _EACH),
    "AsyncResult": "{name}.get_result(result_id)",
    "retry": "raise Retry(after_seconds=30) in the function; any other error is retried too, up to max_attempts",
}


def check_given(task: AnyTask, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise WrongArguments unless the function of `task` can be called with what enqueue() was given."""
    if (problem := _problem(task, args, kwargs)) is not None:
        raise WrongArguments(f"{_told(task, problem)} Nothing was written; {_advice(task, kwargs)}.")


def check_stored(task: AnyTask, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise WrongArguments unless the function of `task` can be called with the arguments of a job."""
    if (problem := _problem(task, args, kwargs)) is not None:
        raise WrongArguments(
            f"{_told(task, problem)} The function was not called, and the job is not retried: it was added "
            "by other code or by hand. Correct its payload, or deploy the code that takes it, and retry the job."
        )


def shown_signature(task: AnyTask) -> str:
    """The parameters that enqueue() takes, without annotations: "(order_id, *, channel='mail')"."""
    signature = _signature(task.func)
    if signature is None:
        return "(...)"
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = str(inspect.Signature(parameters[1:] if task.takes_context else parameters))
    return text if len(text) <= 200 else text[:200] + "..."


def _by_place(
    task: AnyTask, args: Sequence[JSON], kwargs: Mapping[str, JSON]
) -> tuple[Sequence[JSON], Mapping[str, JSON]]:
    """The same call with each argument by its place that may be given so; as it is if the function does not take it."""
    signature = _signature(task.func) if kwargs else None
    if signature is None:
        return args, kwargs
    first = [_CONTEXT] if task.takes_context else []
    try:
        bound = signature.bind(*first, *args, **kwargs)
    except TypeError:
        return args, kwargs
    return bound.args[len(first) :], bound.kwargs


def hashed_key(task: AnyTask, payload: dict[str, JSON]) -> bytes:
    """32 bytes of the task and its arguments, the same for equal JSON whatever the order of its keys.

    Also whether they are given by place or by name.
    """
    args, kwargs = _by_place(task, payload["args"], payload["kwargs"])
    same: JSON = payload | {"args": list(args), "kwargs": dict(kwargs)}
    text = dump([task.module_path, _sorted(same)], max_bytes=_ANY_BYTES)
    return hashlib.sha256(text.encode()).digest()


def _sorted(value: JSON) -> JSON:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _problem(task: AnyTask, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    # bind() is the most expensive step of a small job.
    if not kwargs and len(args) + task.takes_context in _positional(task.func):
        return None
    signature = _signature(task.func)
    if signature is None:
        return None
    try:
        if task.takes_context:
            signature.bind(_CONTEXT, *args, **kwargs)
        else:
            signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


@cache
def _signature(func: Callable[..., object]) -> inspect.Signature | None:
    """How `func` is called; None if that cannot be known.

    A decorator that passes on (*args, **kwargs) takes what the function below it takes, as inspect.signature() says.
    One with parameters of its own, or with a __signature__, takes those.
    """
    try:
        return signature_of(inspect.unwrap(func, stop=lambda outer: not _passes_all_on(outer)))
    except ValueError:  # it wraps itself
        return None


@cache
def _positional(func: Callable[..., object]) -> range:
    """The numbers of positional arguments that `func` accepts; an empty range if that is not known."""
    signature = _signature(func)
    if signature is None:
        return range(0)
    parameters = list(signature.parameters.values())
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters):
        return range(0)
    # More than these fit if there is *args: bind() finds that.
    return range(sum(one.default is one.empty for one in places), len(places) + 1)


def _passes_all_on(func: Callable[..., object]) -> bool:
    signature = signature_of(func)
    if signature is None or "__signature__" in getattr(func, "__dict__", ()):
        return False
    return [parameter.kind for parameter in signature.parameters.values()] == _PASSES_ALL


def _told(task: AnyTask, problem: str) -> str:
    name = task.func.__name__
    return f"{task.module_path}: {problem}. It takes {name}{shown_signature(task)}{_decorated(task)}."


def _decorated(task: AnyTask) -> str:
    if not hasattr(task.func, "__wrapped__"):
        return ""
    return "; a decorator that passes arguments of its own sets __signature__ on what it returns"


def _advice(task: AnyTask, kwargs: Mapping[str, object]) -> str:
    """What to do about arguments that the function does not take."""
    if task.takes_context and "context" in kwargs:
        return "leave out context, which the worker passes"
    signature = _signature(task.func)
    parameters = signature.parameters.values() if signature else []
    strange = kwargs.keys() - {parameter.name for parameter in parameters}
    if strange and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        name, call = min(strange), f"{task.func.__name__}.using"
        if near := did_you_mean(name, [parameter.name for parameter in parameters]):
            return f"{name!r} is none of its parameters{near}"
        if name in UsingFields.__annotations__ and hasattr(task, name):
            return f"write {call}({name}=...)"
        if name in OPTIONS and hasattr(task, name):
            return f"write @task({name}=...)"
        if (advice := option_advice(name, call)) is not None:
            return advice
    return "pass the arguments of the function, and options to using()"


def option_advice(option: str, call: str) -> str | None:
    """What to write instead of an option of another queue, as an argument of `call`; None for other words."""
    if (field := _OPTIONS.get(option)) is not None:
        first = ", where the first attempt counts" if field is _TRIES else ""
        return f"write {call}({field}){first}"
    instead = _OF_THE_TASK.get(option)
    return None if instead is None else f"write {instead}"


def method_advice(method: str, function: str) -> str | None:
    """What to write instead of a method of a task of another queue; None for other words."""
    instead = _METHODS.get(method)
    return None if instead is None else f"write {instead.format(name=function)}"
