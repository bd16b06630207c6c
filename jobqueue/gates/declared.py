"""The limits that tasks of this process were declared with. Needs no models: @task comes before the apps are ready."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from jobqueue.durations import parse_rate


class Declared(NamedTuple):
    """What @task says; None: no limit."""

    concurrency: int | None
    per_second: float | None


_NOTHING = Declared(None, None)
_declared: dict[str, Declared] = {}
_dependencies: dict[str, str] = {}


def declare(path: str, concurrency_limit: int | None, rate_limit: str | None, dependency: str | None) -> None:
    """Record what a task waits for. `gates` is below `tasks` and cannot look there."""
    if concurrency_limit is None and rate_limit is None:
        _declared.pop(path, None)
    else:
        _declared[path] = Declared(concurrency_limit, None if rate_limit is None else parse_rate(rate_limit))
    if dependency is None:
        _dependencies.pop(path, None)
    else:
        _dependencies[path] = dependency


def any_dependency() -> bool:
    """Whether any task of this process has a dependency."""
    return bool(_dependencies)


def dependency_of(path: str | None) -> str | None:
    """The dependency of a task; None if it has none or is not known here."""
    return _dependencies.get(path) if path is not None else None


def dependencies() -> Collection[str]:
    """The dependencies of the tasks of this process."""
    return frozenset(_dependencies.values())


def of_task(path: str) -> Declared:
    """The limits of a task; none if it has none or is not known here."""
    return _declared.get(path, _NOTHING)


def tasks() -> Collection[str]:
    """The paths of the tasks that have limits."""
    return _declared.keys()
