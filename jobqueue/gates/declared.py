"""The limits and dependencies that the tasks of this process and its settings have, as claims ask for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol, TypeVar

from jobqueue.base.durations import parse_rate
from jobqueue.base.payload import JSON
from jobqueue.conf import load
from jobqueue.conf.known_tasks import having, spec_at
from jobqueue.conf.task_spec import OPTIONS


class Declared(NamedTuple):
    """What @task or QUEUES says; None: no limit."""

    concurrency: int | tuple[int, int] | None  # of a queue also (least, most)
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
_NONE = Declared(None, None)
_LIMITS = tuple(name for name, option in OPTIONS.items() if option.is_limit)

#: dependencies of jobs that this process has claimed: using() may name one that no task or setting does
_met: set[str] = set()


def any_dependency() -> bool:
    """Whether any task of this process has a dependency, or any job that it has claimed."""
    return bool(_met or having("dependency"))


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
    return own if isinstance(own, str) else spec_at(job.task).dependency


def needing(jobs: Iterable[J]) -> list[tuple[str, J]]:
    """Those of `jobs` that have a dependency, with its name."""
    # Most have none, and this runs for every job: they cost no call.
    of_tasks = having("dependency")
    some = [job for job in jobs if job.dependency is not None or job.options or job.task in of_tasks]
    return [(name, job) for job in some if (name := needed_by(job)) is not None]


def dependencies() -> Collection[str]:
    """The dependencies of the tasks of this process."""
    return frozenset(having("dependency").values())


def of_task(path: str) -> Declared:
    """The limits of a task; none if it has none or is not known here."""
    spec = spec_at(path)
    return Declared(spec.concurrency_limit, None if spec.rate_limit is None else parse_rate(spec.rate_limit))


def of_queue(queue: str) -> Declared:
    """The limits of a queue in the settings; none if it has none."""
    own = load().queues.get(queue)
    return _NONE if own is None else Declared(own.concurrency, parse_rate(own.rate) if own.rate else None)


def tasks() -> Collection[str]:
    """The paths of the tasks that have limits, and their earlier ones."""
    return {path for option in _LIMITS for path in having(option)}
