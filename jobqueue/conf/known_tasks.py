"""The tasks of this process by their paths, for all who ask what a task was declared with.

Below the database and the models: the gates and the transitions read limits, dependencies and rules here, which rows of
jobs do not have. `tasks.registry` fills it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from jobqueue.base.compat import AnyTask
from jobqueue.conf.task_spec import NO_OPTIONS, TaskSpec, spec_of
from jobqueue.exceptions import InvalidValue

_lock = threading.Lock()
_tasks: dict[str, AnyTask] = {}
#: the options of each, as its newest declaration has them
_specs: dict[str, TaskSpec] = {}
#: the present path of each task, by its earlier paths
_aliases: dict[str, str] = {}
#: what having() has found since the last task was added
_having: dict[str, dict[str, Any]] = {}


def add_task(path: str, task: AnyTask) -> bool:
    """Register a task under its path and its aliases; False if the function is known already.

    A reloaded module replaces its own task. If a function is declared twice, jobs run the first task, with the limits
    and rules of the newest one. Raises InvalidValue if an alias is that of another task.
    """
    spec = spec_of(task)
    with _lock:
        for alias in spec.aliases:
            if (other := _aliases.get(alias, path)) != path:
                raise InvalidValue(
                    f"{alias!r} is already an alias of {other}, so it cannot be one of {path}. "
                    "A job names one task; remove the alias from one of the two."
                )
        known = _tasks.get(path)
        is_new = known is None or known.func is not task.func
        if is_new:
            _tasks[path] = task
        _specs[path] = spec
        _aliases.update(dict.fromkeys(spec.aliases, path))
        _having.clear()
    return is_new


def find_task(path: str) -> AnyTask | None:
    """The task registered under `path` or with that alias; None if there is none."""
    return _tasks.get(path) or _tasks.get(_aliases.get(path, path))


def all_tasks() -> list[AnyTask]:
    """The tasks by their paths."""
    return [task for _, task in sorted(_tasks.items())]


def spec_at(path: str | None) -> TaskSpec:
    """The options of the task of this path; the defaults for one that is not known here, and for a handler."""
    if path is None:
        return NO_OPTIONS
    return _specs.get(path) or _specs.get(_aliases.get(path, path), NO_OPTIONS)


def having(option: str) -> Mapping[str, Any]:
    """The values of an option by the present and earlier paths of the tasks for which it is not the default."""
    # Claims and acks ask first whether any task has it, so it is not looked for each time.
    found = _having.get(option)
    if found is None:
        default = getattr(NO_OPTIONS, option)
        with _lock:
            values = {path: getattr(spec, option) for path, spec in _specs.items()}
            values |= {
                alias: values[path] for alias, path in _aliases.items() if path in values and alias not in values
            }
            found = _having[option] = {path: value for path, value in values.items() if value != default}
    return found


def path_of(path: str) -> str:
    """The present path of a task, if this is an earlier one; else `path`."""
    return _aliases.get(path, path)


def names_of(path: str) -> list[str]:
    """The present path of a task, and the earlier ones."""
    return [path, *(alias for alias, present in _aliases.items() if present == path)]
