"""The limits that tasks of this process were declared with. Needs no models: @task comes before the apps are ready."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from jobqueue.durations import parse_rate
from jobqueue.payload import JSON


class Declared(NamedTuple):
    """What @task says; None: no limit."""

    concurrency: int | None
    per_second: float | None


class Needing(Protocol):
    """A job as a claim reads it, or its lease."""

    @property
    def task(self) -> str | None: ...
    @property
    def options(self) -> JSON: ...
    @property
    def dependency(self) -> str | None: ...


J = TypeVar("J", bound=Needing)

_NOTHING = Declared(None, None)
_declared: dict[str, Declared] = {}
_dependencies: dict[str, str] = {}
#: the present path of each task, by its earlier paths
_paths: dict[str, str] = {}
#: dependencies of jobs that this process has claimed: using() may name one that no task or setting does
_met: set[str] = set()


def declare(
    path: str,
    aliases: Sequence[str],
    concurrency_limit: int | None,
    rate_limit: str | None,
    dependency: str | None,
) -> None:
    """Record what a task waits for. `gates` is below `tasks` and cannot look there."""
    _paths.update(dict.fromkeys(aliases, path))
    for name in (path, *aliases):
        if concurrency_limit is None and rate_limit is None:
            _declared.pop(name, None)
        else:
            _declared[name] = Declared(concurrency_limit, None if rate_limit is None else parse_rate(rate_limit))
        if dependency is None:
            _dependencies.pop(name, None)
        else:
            _dependencies[name] = dependency


def path_of(task: str) -> str:
    """The present path of a task, if `task` is an earlier one; else `task`."""
    return _paths.get(task, task)


def names_of(path: str) -> list[str]:
    """The present path of a task, and the earlier ones."""
    return [path, *(alias for alias, present in _paths.items() if present == path)]


def any_dependency() -> bool:
    """Whether any task of this process has a dependency, or any job that it has claimed."""
    return bool(_dependencies or _met)


def meet(dependencies: Collection[str]) -> None:
    """Record that jobs have these: from now on claims look at breakers, also if no task or setting names one."""
    _met.update(dependencies)


def needed_by(job: Needing) -> str | None:
    """The dependency of a job: that of its row, or of using(), else that of its task if this process knows it.

    A claim reads the column only where a setting, a task or an earlier job of this process has a dependency.
    """
    if job.dependency is not None:
        return job.dependency
    own = job.options.get("dependency") if isinstance(job.options, dict) else None
    return own if isinstance(own, str) else dependency_of(job.task)


def needing(jobs: Iterable[J]) -> list[tuple[str, J]]:
    """Those of `jobs` that have a dependency, with its name."""
    # Most have none, and this runs for every job: they cost no call.
    some = [job for job in jobs if job.dependency is not None or job.options or job.task in _dependencies]
    return [(name, job) for job in some if (name := needed_by(job)) is not None]


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
