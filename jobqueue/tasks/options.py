"""Options that a job stores because using() gave it other values than its task, and that only the worker reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Any, TypeAlias

from jobqueue.backoff import Backoff, Wait, checked_wait
from jobqueue.compat import AnyTask
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import InvalidType, JobQueueError, PayloadError
from jobqueue.failures import dotted_path
from jobqueue.failures.dependencies import check_dependency
from jobqueue.failures.known import classes
from jobqueue.payload import JSON, encode
from jobqueue.tasks import registry
from jobqueue.validation import check_int, check_queue, check_seconds

_BYTES_MAX = 8192
_RETRY, WAITING = "retry", "waiting"
#: exceptions as classes, or as the names of classes that a row stores
Errors: TypeAlias = Sequence[type[BaseException] | str]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The fields of a JobTask that control how a worker runs its jobs; exceptions are classes, or names of classes."""

    backoff: Wait | None = None
    retry_on: Errors | None = None
    no_retry_on: Errors | None = None
    retry_until_seconds: float | None = None
    move_after: int | None = None
    move_to: str | None = None
    timeout_seconds: float | None = None
    hard_timeout_seconds: float | None = None
    ack_each: bool = False
    dependency: str | None = None
    result_ttl_seconds: float | None = None


FIELDS = tuple(JobOptions.__slots__)
#: a task has these fields itself, unless it is one of another backend
RunOptions: TypeAlias = AnyTask | JobOptions | None


def own_options(task: AnyTask, due: datetime | None = None) -> Encoded | None:
    """The options to store with a job of `task` that falls `due` then (None: at once).

    None for a task as its decorator made it, unless it has on_crash, retry_until_seconds or unique="waiting". Raises
    InvalidType for a backoff function, which a row cannot store: it belongs to @task.
    """
    known, waits = registry.find_task(task.module_path), getattr(task, "unique", None) == WAITING
    on_crash, limit = getattr(task, "on_crash", _RETRY), getattr(task, "retry_until_seconds", None)
    if known is task and on_crash == _RETRY and limit is None and not waits:
        return None
    differing = [n for n in FIELDS if hasattr(task, n) and getattr(task, n) != getattr(known, n, None)]
    own = {name: _to_json(name, getattr(task, name)) for name in differing}
    if on_crash != _RETRY:
        # Always on the row: a reaper need not know the task.
        own["on_crash"] = on_crash
    if waits:
        # As transitions.claiming.first_claim reads it: a claim reads the options anyway.
        own["unique"] = WAITING
    if limit is not None:
        # As transitions.first_due reads it: crashes and parking move run_at.
        own["first_due"] = [None if due is None else due.isoformat(), 0]
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


def may_retry(options: RunOptions, error: BaseException) -> bool:
    """Whether the rules of a task or of JobOptions allow another attempt after `error`."""
    only, never = getattr(options, "retry_on", None), getattr(options, "no_retry_on", None)
    return not (never and _is_one(error, never)) and (not only or _is_one(error, only))


def _is_one(error: BaseException, kinds: Errors) -> bool:
    # Names are compared and never imported, so data cannot name code. isinstance() would ask for __class__, which may
    # be a property that raises.
    names = {path for _, path in classes(error)}
    return any(kind in names if isinstance(kind, str) else issubclass(type(error), kind) for kind in kinds)


def _to_json(name: str, value: Any) -> JSON:
    if name in ("retry_on", "no_retry_on"):
        return [dotted_path(kind) for kind in value]
    if isinstance(value, Backoff):
        return list(astuple(value))
    if isinstance(value, tuple):
        return {"table": list(value)}
    if name == "backoff" and callable(value):
        raise InvalidType("a backoff function belongs to @task: a job cannot carry it. Give using() a Backoff.")
    return value


def _from_json(name: str, value: JSON) -> object:
    if name in ("retry_on", "no_retry_on"):
        return tuple(str(kind) for kind in value)
    if name == "ack_each":
        return bool(value)
    if name == "backoff":
        if isinstance(value, dict):
            return checked_wait(value["table"])
        return checked_wait(Backoff(*value) if isinstance(value, list) else value)
    if name == "dependency":
        return check_dependency(value)
    if name == "move_after":
        return check_int(value, name, 1)
    if name == "move_to":
        return check_queue(value)
    return check_seconds(value, name)
