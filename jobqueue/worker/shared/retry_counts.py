"""Runs and retries in the shared memory of a worker: for each task, and the present rates for each dependency.

Only the process that settles a run writes to its own part; all processes read all parts. The process that is started in
its place goes on with its numbers.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

_DEPENDENCIES, _TASKS = 32, 64
_NAME_BYTES, _TASK_BYTES = 64, 255


class DependencyRates(ctypes.Structure):
    """What one process has run lately of jobs that need one dependency, in runs per second."""

    first_rate: float
    run_rate: float
    failure_rate: float
    updated_at: float
    used: int
    name: bytes

    _fields_ = (
        ("first_rate", ctypes.c_double),
        ("run_rate", ctypes.c_double),
        ("failure_rate", ctypes.c_double),
        ("updated_at", ctypes.c_double),  # by the monotonic clock
        ("used", ctypes.c_int32),
        ("name", ctypes.c_char * (_NAME_BYTES + 1)),
    )


class TaskRuns(ctypes.Structure):
    """The runs of one task in one process; `held` retries waited for the budget."""

    first_runs: int
    retries: int
    calls: int
    held: int
    held_us: int
    tries_max: int
    used: int
    dependency: bytes
    task: bytes

    _fields_ = (
        ("first_runs", ctypes.c_int64),
        ("retries", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("held", ctypes.c_int64),
        ("held_us", ctypes.c_int64),
        ("tries_max", ctypes.c_int64),
        ("used", ctypes.c_int32),
        ("dependency", ctypes.c_char * (_NAME_BYTES + 1)),
        ("task", ctypes.c_char * (_TASK_BYTES + 1)),
    )


class RetryMemory(ctypes.Structure):
    """The part of one process."""

    dependencies: Sequence[DependencyRates]
    tasks: Sequence[TaskRuns]

    _fields_ = (("dependencies", DependencyRates * _DEPENDENCIES), ("tasks", TaskRuns * _TASKS))


class RetryCounts:
    """The numbers of one process. The last place counts what has no place of its own, under the name "other"."""

    def __init__(self, memory: RetryMemory) -> None:
        self._memory = memory
        # The settler and the relay take places.
        self._lock = Lock()

    def rates(self, dependency: str) -> DependencyRates | None:
        """The rates of a dependency, for the process to change; None if there is no place for more of them."""
        name = _cut(dependency, _NAME_BYTES)
        for place in self._memory.dependencies:
            if not place.used:
                place.name = name
                place.used = 1  # last: other processes read it
            if place.name == name:
                return place
        return None

    def runs(self, dependency: str | None, task: str) -> TaskRuns:
        """The runs of a task, for the process to change."""
        key = _cut(dependency or "", _NAME_BYTES), _cut(task, _TASK_BYTES)
        with self._lock:
            for number, place in enumerate(self._memory.tasks, 1):
                if not place.used:
                    place.dependency, place.task = (b"", b"other") if number == _TASKS else key
                    place.used = 1
                if (place.dependency, place.task) == key:
                    return place
            return place

    def known_rates(self, dependency: str) -> DependencyRates | None:
        """The rates of a dependency, if this process has run jobs that need it."""
        name = _cut(dependency, _NAME_BYTES)
        return next((place for place in self._memory.dependencies if place.used and place.name == name), None)

    def all_runs(self) -> Iterator[TaskRuns]:
        """The runs of each task."""
        return (place for place in self._memory.tasks if place.used)


class RetryTotal(NamedTuple):
    """The runs of one task in all processes of a worker."""

    dependency: str
    task: str
    first_runs: int = 0
    retries: int = 0
    calls: int = 0
    held: int = 0
    held_seconds: float = 0.0

    @property
    def amplification(self) -> float:
        """How many calls one job has made: attempts x retries inside an attempt.

        While only retries have run, as after a restart, the retries inside an attempt alone.
        """
        return self.calls / (self.first_runs or self.retries or 1)

    def shown(self) -> dict[str, str | int | float]:
        """The numbers for people, by name."""
        return {
            **self._asdict(),
            "held_seconds": round(self.held_seconds, 1),
            "amplification": round(self.amplification, 2),
        }


def totals(processes: Iterable[RetryCounts]) -> list[RetryTotal]:
    """The sums over `processes`, by dependency and task."""
    found: dict[tuple[str, str], RetryTotal] = defaultdict(lambda: RetryTotal("", ""))
    for each in processes:
        for runs in each.all_runs():
            key = runs.dependency.decode(errors="replace"), runs.task.decode(errors="replace")
            sofar = found[key]
            found[key] = RetryTotal(
                *key,
                sofar.first_runs + runs.first_runs,
                sofar.retries + runs.retries,
                sofar.calls + runs.calls,
                sofar.held + runs.held,
                sofar.held_seconds + runs.held_us / 1e6,
            )
    return [found[key] for key in sorted(found)]


def _cut(text: str, size: int) -> bytes:
    return text.encode(errors="replace")[:size]
