"""Options that a job stores because using() gave it other values than its task, and that only the worker reads."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from jobqueue.base.compat import AnyTask
from jobqueue.base.payload import JSON, encode
from jobqueue.conf.known_tasks import find_task
from jobqueue.conf.task_spec import NO_OPTIONS, OPTIONS, JobOptions, TaskSpec, spec_of
from jobqueue.db.fields import Encoded
from jobqueue.exceptions import JobQueueError, PayloadError
from jobqueue.failures.causes import classes
from jobqueue.producer.life import with_first_due

_BYTES_MAX = 8192
_STORED = {name: option for name, option in OPTIONS.items() if option.in_options}


def own_options(task: AnyTask, due: datetime | None = None) -> Encoded | None:
    """The options to store with a job of `task` that falls `due` then (None: at once).

    None for a task as its decorator made it, unless it has on_crash, retry_until_seconds or unique="waiting". Raises
    InvalidType for a backoff function, which a row cannot store: it belongs to @task.
    """
    spec, known = spec_of(task), find_task(task.module_path)
    own: dict[str, JSON] = {}
    if task is not known:
        of_task = spec_of(known)
        for name, option in _STORED.items():
            if (value := getattr(spec, name)) != getattr(of_task, name):
                own[name] = None if value is None else option.to_json(value)
    if spec.on_crash != NO_OPTIONS.on_crash:
        # Always on the row: a reaper need not know the task.
        own["on_crash"] = spec.on_crash
    if spec.unique == "waiting":
        # As transitions.claiming.plans reads it: a claim reads the options anyway.
        own["unique"] = spec.unique
    if spec.retry_until_seconds is not None:
        own = with_first_due(own, due)
    return Encoded(encode(own, max_bytes=_BYTES_MAX, what="what using() was given")) if own else None


def options_of(task: AnyTask | None, stored: JSON) -> TaskSpec:
    """The options of a job of `task` whose row has `stored`: those of the task, with the stored ones in their place.

    Raises PayloadError for what own_options() does not write.
    """
    spec = spec_of(task)
    if stored is None or task is None:
        return spec
    try:
        found = {name: _read(name, value) for name, value in stored.items() if name in _STORED}
    except (AttributeError, JobQueueError, LookupError, TypeError, ValueError):
        raise PayloadError("the options of the job cannot be read; set them to NULL and retry the job") from None
    return JobOptions(**{name: getattr(spec, name) for name in OPTIONS} | found)


def _read(name: str, value: Any) -> Any:
    option = _STORED[name]
    if value is None:
        return None
    return option.check(value, name) if option.from_json is None else option.from_json(value)


def may_retry(options: TaskSpec, error: BaseException) -> bool:
    """Whether retry_on and no_retry_on allow another attempt after `error`."""
    only, never = options.retry_on, options.no_retry_on
    return not (never and _is_one(error, never)) and (not only or _is_one(error, only))


def _is_one(error: BaseException, kinds: Iterable[type[BaseException] | str]) -> bool:
    # Names are compared and never imported, so data cannot name code. isinstance() would ask for __class__, which may
    # be a property that raises.
    names = {path for _, path in classes(error)}
    return any(kind in names if isinstance(kind, str) else issubclass(type(error), kind) for kind in kinds)
