"""Options that a job stores because using() gave it other values than its task, and that only the worker reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

from jobqueue.backoff import Backoff, Wait, check_wait
from jobqueue.compat import AnyTask
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import InvalidType, JobQueueError, PayloadError
from jobqueue.failures import dotted_path
from jobqueue.payload import JSON, encode
from jobqueue.tasks import registry
from jobqueue.validation import check_seconds

_BYTES_MAX = 8192
#: exceptions as classes, or as the names of classes that a row stores
Errors: TypeAlias = Sequence[type[BaseException] | str]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The fields of a JobTask that control how a worker runs its jobs; exceptions are classes, or names of classes."""

    backoff: Wait | None = None
    retry_on: Errors | None = None
    no_retry_on: Errors | None = None
    timeout_seconds: float | None = None
    hard_timeout_seconds: float | None = None
    ack_each: bool = False


FIELDS = tuple(JobOptions.__slots__)
#: a task has these fields itself, unless it is one of another backend
RunOptions: TypeAlias = AnyTask | JobOptions | None


def own_options(task: AnyTask) -> Encoded | None:
    """The options to store with a job of `task`; None for a task as its decorator made it.

    Raises InvalidType for a backoff function, which a row cannot store: it belongs to @task.
    """
    known = registry.find_task(task.module_path)
    if known is task:
        return None
    differing = [n for n in FIELDS if hasattr(task, n) and getattr(task, n) != getattr(known, n, None)]
    own = {name: _to_json(name, getattr(task, name)) for name in differing}
    return Encoded(encode(own, max_bytes=_BYTES_MAX, what="what using() was given")) if own else None


def options_of(task: AnyTask | None, stored: JSON) -> RunOptions:
    """The options of a job of `task` whose row has `stored`: the task itself, or JobOptions with the stored fields.

    Raises PayloadError for what own_options() does not write.
    """
    if stored is None or task is None:
        return task
    try:
        found = {name: _from_json(name, value) for name, value in stored.items() if name in FIELDS}
    except (AttributeError, JobQueueError, TypeError, ValueError):
        raise PayloadError("the options of the job cannot be read; set them to NULL and retry the job") from None
    return JobOptions(**{name: getattr(task, name, None) for name in FIELDS} | found)


def may_retry(options: RunOptions, error: BaseException | None) -> bool:
    """Whether the rules of a task or of JobOptions allow another attempt after `error`."""
    only, never = getattr(options, "retry_on", None), getattr(options, "no_retry_on", None)
    return not (never and _is_one(error, never)) and (not only or _is_one(error, only))


def _is_one(error: BaseException | None, kinds: Errors) -> bool:
    # Names are compared and never imported, so data cannot name code.
    names = {dotted_path(kind) for kind in type(error).__mro__}
    return any(kind in names if isinstance(kind, str) else isinstance(error, kind) for kind in kinds)


def _to_json(name: str, value: Any) -> JSON:
    if name in ("retry_on", "no_retry_on"):
        return [dotted_path(kind) for kind in value]
    if isinstance(value, Backoff):
        return list(astuple(value))
    if name == "backoff" and callable(value):
        raise InvalidType("a backoff function belongs to @task: a job cannot carry it. Give using() a Backoff.")
    return value


def _from_json(name: str, value: JSON) -> object:
    if name in ("retry_on", "no_retry_on"):
        return tuple(str(kind) for kind in value)
    if name == "ack_each":
        return bool(value)
    if name == "backoff":
        wait = Backoff(*value) if isinstance(value, list) else value
        check_wait(wait)
        return wait
    return check_seconds(value, name)
