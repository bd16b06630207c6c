"""The payload of a task's job: its arguments and their version, upcast to what the task takes now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON, MAX_DEPTH, normalized
from jobqueue.base.validation import check_int
from jobqueue.conf.task_spec import spec_of
from jobqueue.exceptions import InvalidType, InvalidValue, UnknownTask, WrongArguments
from jobqueue.tasks.signature import check_given, check_stored

Arguments: TypeAlias = tuple[list[JSON], dict[str, JSON]]
#: (args, kwargs) of one version -> (args, kwargs) of the next one
Upcaster: TypeAlias = Callable[[list[JSON], dict[str, JSON]], tuple[JSON, JSON]]

_KEYS = {"args", "kwargs", "version"}
_upcasters: dict[tuple[str, int], Upcaster] = {}


def payload_of(task: AnyTask, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, JSON]:
    """The payload of a new job of `task`, plain JSON.

    Raises WrongArguments for arguments that the function does not take, PayloadError for those that are not JSON.
    """
    check_given(task, args, kwargs)
    version = version_of(task)
    # Most calls have one of the two, and many jobs may be added at once.
    payload: dict[str, JSON] = {
        "args": normalized(list(args), f"{task.module_path}: args", MAX_DEPTH - 1) if args else [],
        "kwargs": normalized(dict(kwargs), f"{task.module_path}: kwargs", MAX_DEPTH - 1) if kwargs else {},
    }
    return payload | {"version": version} if version > 1 else payload


def add_upcaster(task: AnyTask, from_version: int, func: Upcaster) -> None:
    """Register `func` for payloads of `from_version`. Raises InvalidValue if the version has one or needs none."""
    check_int(from_version, "from_version", 1)
    own = version_of(task)
    if from_version >= own:
        raise InvalidValue(
            f"upcaster(from_version={from_version}) of {task.module_path}, whose version is {own}: it needs "
            f"@task(version={from_version + 1}) or more."
        )
    if not callable(func):
        raise InvalidType(f"an upcaster is a function of (args, kwargs), got {type(func).__name__}.")
    key = task.module_path, from_version
    known = _upcasters.get(key)
    # A reloaded module replaces its own upcaster.
    if known is not None and known.__module__ != getattr(func, "__module__", None):
        raise InvalidValue(f"{task.module_path} already has an upcaster from version {from_version}.")
    _upcasters[key] = func


def version_of(task: AnyTask) -> int:
    """The version of the arguments that a task takes; 1 for a task of another backend."""
    return spec_of(task).version


def missing_version(task: AnyTask, version: int) -> int | None:
    """The version from which a payload of `version` cannot be upcast to the task's; None when it can run."""
    own = version_of(task)
    if version > own:
        return version
    return next((n for n in range(version, own) if (task.module_path, n) not in _upcasters), None)


def arguments(task: AnyTask, payload: JSON) -> Arguments:
    """The args and kwargs of a payload, in the task's own version.

    Raises UnknownTask for a version that this process cannot upcast, WrongArguments for anything but a task's payload
    and for arguments that the function does not take.
    """
    args, kwargs = unchecked_arguments(task, payload)
    check_stored(task, args, kwargs)
    return args, kwargs


def unchecked_arguments(task: AnyTask, payload: JSON) -> Arguments:
    """arguments(), also those that the function does not take."""
    args, kwargs, version = _parts(payload)
    return (args, kwargs) if version == version_of(task) else _upcast(task, args, kwargs, version)


def _upcast(task: AnyTask, args: list[JSON], kwargs: dict[str, JSON], version: int) -> Arguments:
    own = version_of(task)
    if (stuck := missing_version(task, version)) is not None:
        why = f"takes up to {own}" if version > own else f"has no upcaster from {stuck}"
        raise UnknownTask(f"the payload has version {version}, and task {task.module_path!r} {why} in this worker")
    for number in range(version, own):
        made = _upcasters[task.module_path, number](args, kwargs)
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict)):
            raise InvalidType(
                f"the upcaster of {task.module_path} from version {number} must return (args, kwargs), got {made!r:.80}"
            )
        args, kwargs = list(made[0]), made[1]
    return args, kwargs


def _parts(payload: JSON) -> tuple[list[JSON], dict[str, JSON], int]:
    if isinstance(payload, dict) and payload.keys() <= _KEYS:
        args, kwargs, version = payload.get("args", []), payload.get("kwargs", {}), payload.get("version", 1)
        number = isinstance(version, int) and not isinstance(version, bool) and version > 0
        if isinstance(args, list) and isinstance(kwargs, dict) and number:
            return args, kwargs, version
    raise WrongArguments(
        'the payload of a task must be {"args": [...], "kwargs": {...}}, with a "version" above 1 if it has one. '
        "The function was not called, and the job is not retried; correct the payload and retry the job."
    )
